// Stores of killed runs with a mark of a checkpoint in place: only another start of their own run
// removes them, and only if no checkpoint can need them.
#include "engine/preflight/leftovers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "aio/log.h"
#include "engine/budget/stripe_plan.h"
#include "swap/state_store.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_under_test.h"

namespace sluice::engine {
namespace {

class MarkedLeftovers : public testing::Test {
 protected:
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
    config_.run.dir = folder_.file("run");
    config_.run.checkpoint_in_place = true;
    config_.aio.threads = 1;
    config_.aio.queue_depth = 8;
    config_.budget.nvme_paths = {folder_.file("nvme")};
    std::filesystem::create_directories(folder_.file("nvme"));
    std::filesystem::create_directories(folder_.file("run/checkpoints"));
    std::ofstream(folder_.file("run/sluice-run.json")) << "{}";
  }
  void TearDown() override { log::set_sink({}); }

  // Left by a run that was killed as it named its first checkpoint, or after that.
  void leave_store(bool named, const std::string& run) {
    const auto backend = aio::make_backend_or_die(aio::BackendKind::kPosix, 1, 8);
    const auto queue = aio::make_queue_or_die(*backend, {});
    swap::StateStore::Options options;
    options.paths = config_.budget.nvme_paths;
    options.run = store_name(config_, "optimizer");
    options.places = 2;
    auto store = swap::StateStore::create({*queue, *queue}, options, swap::test_records());
    ASSERT_OK(store.status());
    const auto executor = std::move(aio::make_executor(1)).value();
    swap::StoreUser(**store, *executor).write_all(1);
    ASSERT_OK((*store)->freeze(run + "/checkpoints/step-000000001").status());
    if (named) ASSERT_OK((*store)->keep_frozen());
  }
  bool is_there() const {
    return std::filesystem::exists(folder_.file("nvme/sluice-") + store_name(config_, "optimizer"));
  }
  // Whether the store stays after another start of the run.
  bool stays(bool named = false, const std::string& run = "") {
    leave_store(named, run.empty() ? config_.run.dir : run);
    EXPECT_OK(clear_leftovers(config_));
    const bool there = is_there();
    std::filesystem::remove_all(folder_.file("nvme"));
    std::filesystem::create_directories(folder_.file("nvme"));
    return there;
  }

  aio::TemporaryFolder folder_;
  config::Config config_;
};

TEST_F(MarkedLeftovers, GoIfTheirRunResumesAndNeverSaved) {
  EXPECT_FALSE(stays());
  std::filesystem::remove(folder_.file("run/checkpoints"));
  EXPECT_FALSE(stays());
}

TEST_F(MarkedLeftovers, StayIfACheckpointMayNeedThem) {
  EXPECT_TRUE(stays(/*named=*/true));
  std::filesystem::create_directories(folder_.file("run/checkpoints/step-000000007"));
  std::ofstream(folder_.file("run/checkpoints/step-000000007/checkpoint.json")) << "{damaged";
  EXPECT_TRUE(stays());
}

TEST_F(MarkedLeftovers, StayIfTheirRunIsNotTheOneThatResumes) {
  EXPECT_TRUE(stays(/*named=*/false, folder_.file("moved")));
  std::filesystem::remove(folder_.file("run/sluice-run.json"));
  EXPECT_TRUE(stays());
}

TEST_F(MarkedLeftovers, AreNotRemovedWithARunWhoseCheckpointsDoNotNameThem) {
  const auto backend = aio::make_backend_or_die(aio::BackendKind::kPosix, 1, 8);
  const auto queue = aio::make_queue_or_die(*backend, {});
  leave_store(/*named=*/true, config_.run.dir);
  EXPECT_OK(remove_stored_run(config_, *queue));
  EXPECT_TRUE(is_there());
}

// Each folder has one store, whatever its spelling.
TEST_F(MarkedLeftovers, HaveTheNameOfTheFolderAndNotOfItsSpelling) {
  const std::string name = store_name(config_, "optimizer");
  config_.run.dir += "/";
  EXPECT_EQ(store_name(config_, "optimizer"), name);
  config_.run.dir = folder_.file("nvme/../run/.");
  EXPECT_EQ(store_name(config_, "optimizer"), name);
  config_.run.dir = "run";
  EXPECT_NE(store_name(config_, "optimizer"), name);
}

}  // namespace
}  // namespace sluice::engine
