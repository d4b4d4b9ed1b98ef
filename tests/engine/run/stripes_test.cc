// Runs over two drives with different weights: where the bytes go, and that they are the same
// bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/run/run_checkpoints.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr double kOfACycle = 0.1;

// All state on NVMe, and large enough for several stripes.
std::vector<std::string> all_on_nvme(std::vector<std::string> more = {}) {
  std::vector<std::string> overrides = {"zero_optimization.offload_optimizer.device=nvme",
                                        "zero_optimization.offload_param.device=nvme",
                                        "zero_optimization.stage3_param_persistence_threshold=0",
                                        "zero_optimization.offload_param.buffer_count=3",
                                        "zero_optimization.sub_group_size=100000",
                                        "model.hidden=256",
                                        "model.heads=4"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

// The bytes of a store's records on a drive.
std::uint64_t records_on(const std::string& drive, const std::string& store) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(drive))
    if (entry.path().string().ends_with(store))
      bytes += std::filesystem::file_size(entry.path() / "records");
  return bytes;
}

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
};

void train(TrainingRun& run, int steps, Trained& trained) {
  for (int i = 0; i < steps; ++i) trained.losses.push_back(run.step().loss);
  trained.masters = masters_of(run);
}

TEST(Stripes, PutBytesOfBothStoresOnDrivesByWeight) {
  const SmallRun small(all_on_nvme(), 2);
  for (const auto& [weights, ratio] :
       {std::pair{std::vector<int>{3, 1}, 3.0}, {{1, 2}, 0.5}, {{}, 1.0}}) {
    const auto run = small.make({.nvme_weights = weights});
    double all = 0;
    std::vector<std::uint64_t> on_drives(2, 0);
    for (const std::string store : {"params", "optimizer"}) {
      const std::uint64_t first = records_on(small.drives()[0], store);
      const std::uint64_t second = records_on(small.drives()[1], store);
      all += static_cast<double>(first + second);
      on_drives[0] += first;
      on_drives[1] += second;
      EXPECT_GT(second, 0U) << store;
    }
    EXPECT_GT(all, 20e6);
    EXPECT_NEAR(static_cast<double>(on_drives[0]) / static_cast<double>(on_drives[1]), ratio,
                ratio * kOfACycle * 2);
    // Exactly the bytes that the plan lists, and that preflight compares with the drives.
    const std::vector<PathBytes> planned = run->plan().nvme_paths();
    ASSERT_EQ(planned.size(), 2U);
    EXPECT_EQ(planned[0].bytes, on_drives[0]);
    EXPECT_EQ(planned[1].bytes, on_drives[1]);
  }
}

TEST(Stripes, OfAnyWeightsTrainToTheSameBits) {
  Trained on_one;
  train(*SmallRun(all_on_nvme()).start(), 3, on_one);
  Trained on_two;
  train(*SmallRun(all_on_nvme({"placement.nvme_weights=[5,2]"}), 2).start(), 3, on_two);
  EXPECT_EQ(on_one.masters, on_two.masters);
  EXPECT_EQ(on_one.losses, on_two.losses);
}

// Stores are created anew, so their weights are not part of a checkpoint.
TEST(Stripes, GoOnFromACheckpointWithOtherWeights) {
  const SmallRun straight(all_on_nvme(), 2);
  Trained never_stopped;
  train(*straight.start(), 4, never_stopped);

  const SmallRun small(all_on_nvme(), 2);
  Trained stopped;
  std::string path;
  {
    const auto run = small.start({.nvme_weights = {3, 1}});
    train(*run, 2, stopped);
    const auto checkpoints =
        RunCheckpoints::create(*run, *run->drives().saves, {.directory = run->config().run.dir});
    ASSERT_TRUE(checkpoints.ok());
    ASSERT_TRUE((*checkpoints)->save({}).ok());
    const auto saved = (*checkpoints)->finished();
    ASSERT_EQ(saved.size(), 1U);
    path = saved[0].path;
  }
  const auto run = small.make({.nvme_weights = {1, 4}});
  const auto reader = CheckpointReader::open(*run->drives().reads, path, {});
  ASSERT_OK(reader);
  ASSERT_OK(run->resume(**reader, {}));
  train(*run, 2, stopped);
  EXPECT_EQ(never_stopped.masters, stopped.masters);
  EXPECT_EQ(never_stopped.losses, stopped.losses);
}

}  // namespace
}  // namespace sluice::engine
