#include "engine/run/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "engine/observe/process_memory.h"
#include "engine/run/config_facts.h"
#include "engine/run/run_data.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(difference / norm);
}

TEST(TrainingRun, LearnsWhatTheCorpusHolds) {
  const SmallRun small({"optimizer.params.lr=0.01", "model.dropout=0"});
  const auto run = small.start();
  const double before = run->evaluate();
  EXPECT_NEAR(before, std::log(64.0), 0.3);  // untrained
  for (int i = 0; i < 60; ++i) run->step();
  EXPECT_LT(run->evaluate(), before - 1.5);  // the optimum is ln 2
}

// A corpus of hundreds of gigabytes is not scanned for a count; that is left to the run itself.
TEST(ConfigAnswers, CountAnEpochWithoutReadingItsTokens) {
  const SmallRun small_vocabulary({"model.vocab=32"});
  const auto counted = samples_per_epoch(small_vocabulary.config());
  ASSERT_OK(counted);
  const auto whole = RunData::open(SmallRun().config(), RunPurpose::kTraining);
  ASSERT_OK(whole);
  EXPECT_EQ(*counted, whole->samples_per_epoch());
  EXPECT_FALSE(RunData::open(small_vocabulary.config(), RunPurpose::kTraining).ok());
  EXPECT_FALSE(samples_per_epoch(SmallRun({"data.train=none.bin"}).config()).ok());
}

TEST(TrainingRun, AccumulatesMicroBatchesToTheWholeBatch) {
  const std::vector<std::string> base = {"bf16.enabled=false", "model.dropout=0"};
  const auto train = [&](const char* micro, const char* accumulation) {
    std::vector<std::string> overrides = base;
    overrides.push_back(std::string("train_micro_batch_size_per_gpu=") + micro);
    overrides.push_back(std::string("gradient_accumulation_steps=") + accumulation);
    const SmallRun small(overrides);
    const auto run = small.start();
    for (int i = 0; i < 5; ++i) run->step();
    return masters_of(*run);
  };
  const std::vector<float> whole = train("4", "1");
  EXPECT_LT(relative_distance(whole, train("2", "2")), 1e-5);
  EXPECT_LT(relative_distance(whole, train("1", "4")), 1e-5);
}

TEST(TrainingRun, GoesOnFromSavedWeights) {
  const SmallRun small;
  const auto run = small.start();
  for (int i = 0; i < 3; ++i) run->step();
  const std::string path = small.folder().file("model.safetensors");
  ASSERT_OK(run->save_weights(path, DType::kF32));
  const SmallRun other({"model.init_from=" + path});
  const auto again = other.start();
  EXPECT_EQ(masters_of(*run), masters_of(*again));
}

TEST(TrainingRun, SavesTheSameBytesForTheSameRun) {
  const auto save = [](const std::vector<std::string>& overrides) {
    const SmallRun small(overrides);
    const auto run = small.start();
    for (int i = 0; i < 3; ++i) run->step();
    const std::string path = small.folder().file("model.safetensors");
    EXPECT_TRUE(run->save_weights(path, DType::kBF16).ok());
    return bytes_of(path);
  };
  const std::string first = save({});
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, save({"zero_optimization.offload_optimizer.device=nvme"}));
}

TEST(TrainingRun, LeavesNothingOnTheDrives) {
  const SmallRun small({"zero_optimization.offload_optimizer.device=nvme",
                        "zero_optimization.offload_param.device=nvme",
                        "zero_optimization.stage3_param_persistence_threshold=0"});
  {
    const auto run = small.start();
    run->step();
    run->trainer().drain();  // completes pending reads, so that they are counted
    EXPECT_FALSE(std::filesystem::is_empty(small.folder().file("nvme")));
    EXPECT_GT(run->traffic().nvme_read_bytes, 0U);
    EXPECT_GT(run->traffic().nvme_write_bytes, 0U);
  }
  EXPECT_TRUE(std::filesystem::is_empty(small.folder().file("nvme")));
}

// Records have 10 bytes of payload per parameter in bf16, and each is read and written once per
// step.
TEST(TrainingRun, MovesWhatThePlanSaysAndNoMore) {
  const SmallRun small(
      {"zero_optimization.offload_optimizer.device=nvme", "zero_optimization.sub_group_size=1e9"});
  const auto run = small.start();
  run->step();
  run->trainer().drain();
  const auto before = run->traffic();
  run->step();
  run->trainer().drain();
  const auto after = run->traffic();
  std::uint64_t elements = 0, records = 0;
  for (int unit = 0; unit < run->model().units(); ++unit) {
    elements += run->model().layout(unit).elements;
    for (const int group : {kDecayed, kUndecayed})
      records += run->model().layout(unit).elements_of_group(group) > 0 ? 1 : 0;
  }
  const std::uint64_t written = after.nvme_write_bytes - before.nvme_write_bytes;
  EXPECT_EQ(written, after.nvme_read_bytes - before.nvme_read_bytes);
  EXPECT_GE(written, 10 * elements);
  EXPECT_LE(written, 10 * elements + records * 2 * 4096 + records * 192);
}

// A token beyond the vocabulary: units are in use when the run is destroyed.
TEST(TrainingRun, IsTakenApartAfterAnErrorInTheMiddleOfAPass) {
  for (const char* const device : {"cpu", "nvme"}) {
    const SmallRun small({"run.device=cpu",
                          std::string("zero_optimization.offload_param.device=") + device,
                          "zero_optimization.stage3_param_persistence_threshold=0"});
    const auto run = small.start();
    std::fstream file(small.folder().file("train.bin"),
                      std::ios::in | std::ios::out | std::ios::binary);
    for (int i = 0; i < 20'000; ++i) file.write("\xFF\x7F", 2);
    file.close();
    EXPECT_ANY_THROW(run->step()) << device;
  }
}

TEST(TrainingRun, TracesEachUnitOfTheStepsAskedFor) {
  const SmallRun small({"zero_optimization.offload_optimizer.device=nvme"});
  const auto run = small.start();
  run->trace().start({.first_step = 2, .last_step = 2});
  for (int i = 1; i <= 3; ++i) {
    run->trace().begin_step(i, SteadyClock().now_ns());
    run->step();
  }
  run->trainer().drain();
  run->trace().end_steps(SteadyClock().now_ns());
  const std::string path = small.folder().file("trace.json");
  ASSERT_OK(run->trace().write_json(path));
  const std::string text = bytes_of(path);
  for (const char* name : {"embedding", "h.0", "h.2", "head"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
}

}  // namespace
}  // namespace sluice::engine
