// The preflight check on simulated machines.
#include "engine/preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aio/real_file_system.h"
#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/preflight/host_shares.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/run/made_up_drives.h"
#include "tests/engine/small_config.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Preflight : public testing::Test {
 protected:
  Preflight() : config_(SmallConfig().config()) {
    plan_.host = {{"state", MemoryUse::kState, 3 * kGiB, /*locked=*/true},
                  {"the rest", MemoryUse::kOther, kGiB}};
    plan_.nvme = {
        {.what = "parameters", .bytes = 2 * kGiB, .paths = {{"/a/run", kGiB}, {"/b", kGiB}}},
        {.what = "optimizer state", .bytes = 6 * kGiB, .paths = {{"/b", 6 * kGiB}}}};
    drives_.folders = {{"/a", {10 * kGiB}}, {"/b", {10 * kGiB}}};
    facts_.available_bytes = 100 * kGiB;
  }

  void on_the_gpu(std::uint64_t needed_bytes, std::uint64_t free_bytes) {
    plan_.cuda = true;
    plan_.gpu = {{"slots", MemoryUse::kOther, needed_bytes}};
    facts_.gpu = GpuMemory{.free_bytes = free_bytes, .total_bytes = 80 * kGiB};
  }

  PreflightReport report() {
    PreflightReport checked = preflight(config_, plan_, facts_, drives_, file_system_of_, storage_);
    EXPECT_TRUE(checked.verdict.ok()) << checked.verdict.error().message();
    return checked;
  }
  std::string refusal(ErrorCode code) {
    const PreflightReport checked =
        preflight(config_, plan_, facts_, drives_, file_system_of_, storage_);
    EXPECT_FALSE(checked.verdict.ok());
    if (checked.verdict.ok()) return "";
    EXPECT_THAT(checked.table, HasSubstr("host memory"));  // with the bytes it takes
    EXPECT_EQ(checked.verdict.error().code(), code);
    return checked.verdict.error().message();
  }

  config::Config config_;
  MemoryPlan plan_;
  MachineFacts facts_;
  MadeUpDrives drives_;
  FileSystemOf file_system_of_ = [](const std::string& folder) { return folder; };
  StorageOf storage_ = [](const std::string&) { return aio::StorageInfo{.file_system = "ext4"}; };
};

TEST_F(Preflight, FindsNothingWrongOnAMachineThatHasEnough) {
  const PreflightReport checked = report();
  EXPECT_THAT(checked.warnings, IsEmpty());
  EXPECT_THAT(checked.table,
              AllOf(HasSubstr("host memory"), HasSubstr("of 92G available"),
                    HasSubstr("pinned part"), HasSubstr("on /a/run"), HasSubstr("on /b"),
                    HasSubstr("O_DIRECT"), HasSubstr("io_uring"), Not(HasSubstr("GPU memory"))));
}

TEST_F(Preflight, HandsOnTheNotesOfThePlan) {
  plan_.notes = {"this was raised"};
  EXPECT_THAT(report().notes, ElementsAre("this was raised"));
}

TEST_F(Preflight, RefusesWhatHostMemoryDoesNotHoldAndSaysHowMuchIsMissing) {
  facts_.available_bytes = 3 * kGiB;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("4G of host memory"), HasSubstr("1.24G are missing"),
                    HasSubstr("offload_optimizer.device")));
  facts_.available_bytes.reset();
  facts_.cgroup_bytes = kGiB;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), HasSubstr("are missing"));
}

TEST_F(Preflight, AdvisesNoSettingWhereNoneIsEnough) {
  plan_.host = {{"the program", MemoryUse::kOther, kGiB},
                {"kept for backward", MemoryUse::kActivations, 2 * kMiB}};
  facts_.available_bytes = 8 * kGiB;
  facts_.cgroup_bytes = 256 * kMiB;
  facts_.cgroup_limit_bytes = 512 * kMiB;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(ContainsRegex("No setting.*1G"), ContainsRegex("memory limit of.*1.3"),
                    Not(HasSubstr("sequence"))));
  facts_.available_bytes = 256 * kMiB;
  facts_.cgroup_bytes.reset();
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("The run needs 88"), HasSubstr("more free host memory")));
}

TEST_F(Preflight, NamesTheBudgetThatIsTooSmallWhereTheMachineHasMore) {
  config_.budget.cpu_gib = 3.5;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("512M are missing"), HasSubstr("budget.cpu_gib to 4.0")));
  facts_.available_bytes = 3 * kGiB;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), Not(HasSubstr("Raise budget.cpu_gib")));
}

// The remedy is for the largest part, even if other parts could go to a drive, and whatever text
// its line of the table has.
TEST_F(Preflight, NamesTheRemedyOfWhatTakesMost) {
  facts_.available_bytes = 8 * kGiB;
  plan_.host = {{"moments and masters", MemoryUse::kState, 2 * kGiB},
                {"kept for backward", MemoryUse::kActivations, 12 * kGiB}};
  config_.batch.micro = 8;
  const std::string activations = refusal(ErrorCode::kOutOfMemory);
  EXPECT_THAT(activations,
              AllOf(ContainsRegex("12G.*activations.*train_micro_batch_size_per_gpu, now 8"),
                    Not(HasSubstr("NVMe"))));
  plan_.host = {{"moments and masters", MemoryUse::kState, 12 * kGiB},
                {"kept for backward", MemoryUse::kActivations, 2 * kGiB}};
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(ContainsRegex("12G.*optimizer state"), Not(HasSubstr("micro_batch"))));
  // If the largest part alone does not suffice, the next one is named as well.
  plan_.host = {{"moments and masters", MemoryUse::kState, 11 * kGiB},
                {"weights", MemoryUse::kParameters, 10 * kGiB},
                {"kept for backward", MemoryUse::kActivations, kGiB}};
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), AllOf(ContainsRegex("10G.*parameters: put")));
  config_.zero.offload_optimizer.device = config::OffloadDevice::kNvme;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), ContainsRegex("10G.*parameters"));
  // What many micro-batches keep between the passes is as large with more and smaller ones.
  config_.model.layers = 1000;
  config_.model.hidden = 1 << 10;
  config_.data.sequence_tokens = 1 << 10;
  plan_.host = {{"kept for backward", MemoryUse::kActivations, 40 * kGiB}};
  plan_.waves = {.micro_batches = 16, .of_a_wave = 16};
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), HasSubstr("placement.wave_micro_batches, now 16"));
  plan_.waves.of_a_wave = 1;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), HasSubstr("train_micro_batch_size_per_gpu, now "));
}

TEST_F(Preflight, NeverAdvisesABudgetThatTheMachineDoesNotHave) {
  config_.budget.cpu_gib = 3.5;
  facts_.available_bytes = 3 * kGiB;
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), Not(HasSubstr("Raise")));
  facts_.available_bytes.reset();  // unknown
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), Not(HasSubstr("Raise")));
}

TEST_F(Preflight, ObeysABudgetThatIsMoreThanTheMachineSaysAndWarns) {
  config_.budget.cpu_gib = 5;
  facts_.available_bytes = kGiB;
  EXPECT_THAT(report().warnings, ElementsAre(HasSubstr("budget.cpu_gib asks for 5G")));
}

TEST_F(Preflight, RefusesWhatTheGpuDoesNotHold) {
  config_.batch.micro = 16;
  on_the_gpu(9 * kGiB, 7 * kGiB);
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("9G of GPU memory"), HasSubstr("are missing"),
                    HasSubstr("train_micro_batch_size_per_gpu, now 16")));
  plan_.activations.kept = {false, true};
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), HasSubstr("placement.recompute"));
  config_.budget.gpu_gib = 8;
  on_the_gpu(9 * kGiB, 40 * kGiB);
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory), HasSubstr("Raise budget.gpu_gib to 9.0"));
}

TEST_F(Preflight, TakesNoMoreOfTheGpuThanItHasAndWarnsOfALargerBudget) {
  config_.budget.gpu_gib = 20;
  on_the_gpu(9 * kGiB, 7 * kGiB);
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("9G of GPU memory"), HasSubstr("has 7.50G")));
  on_the_gpu(6 * kGiB, 7 * kGiB);
  const PreflightReport checked = report();
  EXPECT_THAT(checked.table, AllOf(HasSubstr("GPU memory"), HasSubstr("(budget.gpu_gib)")));
  EXPECT_THAT(checked.warnings, ElementsAre(HasSubstr("budget.gpu_gib asks for 20G")));
}

TEST_F(Preflight, RefusesAFullDriveBeforeAndAfterItsFolderIsMade) {
  drives_.folders["/a"].free_bytes = kGiB - kMiB;  // a half of the parameters
  EXPECT_THAT(refusal(ErrorCode::kNoSpace),
              AllOf(HasSubstr("at /a/run"), HasSubstr("1M are missing")));
  drives_.folders["/a/run"] = drives_.folders["/a"];
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), HasSubstr("at /a/run"));
}

// Both stores are on /b: each alone would fit.
TEST_F(Preflight, AddsUpWhatLiesOnOnePath) {
  drives_.folders["/b"].free_bytes = 7 * kGiB - kMiB;
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), HasSubstr("7G at /b"));
  drives_.folders["/b"].free_bytes = 7 * kGiB;
  report();
}

TEST_F(Preflight, NamesTheWeightsWhereOnePathOfSeveralIsTooFull) {
  drives_.folders["/b"].free_bytes = 6 * kGiB;
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), Not(HasSubstr("placement.nvme_weights")));
  config_.budget.nvme_paths = {"/a/run", "/b"};
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), HasSubstr("(placement.nvme_weights, now 1:1)"));
  plan_.params.options.store.weights = plan_.state.optimizer.store.weights = {1, 7};
  EXPECT_THAT(refusal(ErrorCode::kNoSpace),
              AllOf(HasSubstr("1G are missing"), HasSubstr("(placement.nvme_weights, now 1:7)")));
}

TEST_F(Preflight, AddsUpWhatLiesOnOneFileSystem) {
  config_.budget.nvme_paths = {"/a/run", "/b"};
  file_system_of_ = [](const std::string&) { return "259:1"; };
  drives_.folders["/a"].free_bytes = drives_.folders["/b"].free_bytes = 8 * kGiB;
  EXPECT_THAT(report().table, ContainsRegex("8G free.*/a/run and /b, O_DIRECT"));
  drives_.folders["/a"].free_bytes = drives_.folders["/b"].free_bytes = 8 * kGiB - kMiB;
  // Other weights would not help, since all paths share it.
  EXPECT_THAT(refusal(ErrorCode::kNoSpace),
              AllOf(HasSubstr("8G at /a/run and /b together"), HasSubstr("1M are missing"),
                    Not(HasSubstr("nvme_weights"))));
  config_.budget.nvme_paths.push_back("/c");
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), HasSubstr("a smaller share"));
  // If it is unknown, paths do not count as one file system.
  file_system_of_ = [](const std::string&) { return ""; };
  report();
}

TEST(FileSystemsOfPaths, AreToldByTheirDevicesOnThisMachine) {
  const aio::TemporaryFolder folder;
  aio::RealFileSystem files;
  const auto systems = file_systems_of_paths(
      files, {folder.file("a"), "/proc/self", folder.file("b/c")}, device_number_of);
  ASSERT_EQ(systems.size(), 2U);
  EXPECT_EQ(systems[0].folder, folder.path());
  EXPECT_THAT(systems[0].paths, ElementsAre(0, 2));
  EXPECT_THAT(systems[1].paths, ElementsAre(1));
}

TEST_F(Preflight, CountsWhatElseLiesOnTheFileSystemOfARunsFolder) {
  const auto room = [&](const std::string& folder) {
    return room_beside(drives_, folder, {{"/a/run", kGiB}, {"/b", 7 * kGiB}, {"/b/more", kMiB}},
                       file_system_of_);
  };
  EXPECT_EQ(room("/b/runs/x").free_bytes, 10 * kGiB);
  EXPECT_EQ(room("/b/runs/x").other_bytes, 7 * kGiB + kMiB);
  EXPECT_EQ(room("/a").other_bytes, kGiB);
  EXPECT_EQ(room("/elsewhere").free_bytes, std::nullopt);
  EXPECT_EQ(room("/elsewhere").other_bytes, 0U);
  file_system_of_ = [](const std::string&) { return "259:1"; };
  EXPECT_EQ(room("/a").other_bytes, 8 * kGiB + kMiB);
}

// Both plans are for the same configuration except for the weights.
TEST(NvmeWeights, DecideHowMuchOfAPlanLiesOnEachPath) {
  const std::vector<std::string> large = {"zero_optimization.offload_optimizer.device=nvme",
                                          "zero_optimization.offload_param.device=nvme",
                                          "zero_optimization.stage3_param_persistence_threshold=0",
                                          "model.hidden=512",
                                          "model.layers=8",
                                          R"(budget.nvme_paths=["/a","/b"])"};
  const auto shares = [&](const std::vector<std::string>& more, const PlanOptions& options) {
    std::vector<std::string> overrides = large;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const config::Config config = SmallConfig(overrides).config();
    const ModelLayout model = configured_layout(config, /*on_gpu=*/false);
    const auto plan = plan_memory(config, model, options);
    EXPECT_TRUE(plan.ok()) << plan.error().message();
    const std::vector<PathBytes> paths = plan->nvme_paths();
    EXPECT_EQ(paths.size(), 2U);
    EXPECT_GE(paths.at(0).bytes + paths.at(1).bytes, plan->nvme_bytes());
    EXPECT_LE(paths.at(0).bytes + paths.at(1).bytes, plan->nvme_bytes() + 4 * 4096);
    return static_cast<double>(paths.at(0).bytes) / static_cast<double>(paths.at(1).bytes);
  };
  constexpr double kStripes = 0.05;  // relative to the last cycle
  EXPECT_NEAR(shares({}, {}), 1, kStripes);
  EXPECT_NEAR(shares({}, {.nvme_weights = {3, 1}}), 3, 3 * kStripes);
  EXPECT_NEAR(shares({"placement.nvme_weights=[1,2]"}, {}), 0.5, kStripes);
  // The configuration overrides the measurement.
  EXPECT_NEAR(shares({"placement.nvme_weights=[1,2]"}, {.nvme_weights = {3, 1}}), 0.5, kStripes);
  EXPECT_NEAR(shares({"placement.nvme_weights=equal"}, {.nvme_weights = {3, 1}}), 1, kStripes);
}

TEST_F(Preflight, RefusesMoreThanTheNvmeBudget) {
  config_.budget.nvme_gib = 7.9;
  EXPECT_THAT(refusal(ErrorCode::kNoSpace), HasSubstr("raise it to 8.0"));
  config_.budget.nvme_gib = 8;
  report();
}

TEST_F(Preflight, RefusesAPathThatCannotBeWritten) {
  drives_.folders["/b"].writable = false;
  EXPECT_THAT(refusal(ErrorCode::kPermission),
              AllOf(HasSubstr("/b"), HasSubstr("permission denied"), HasSubstr("nvme_paths")));
}

TEST_F(Preflight, WarnsOfAPathWithoutDirectIo) {
  drives_.folders["/a"].direct = false;
  const PreflightReport checked = report();
  EXPECT_THAT(checked.warnings, ElementsAre(AllOf(HasSubstr("/a/run"), HasSubstr("O_DIRECT"))));
  EXPECT_THAT(checked.table, HasSubstr("through the page cache"));
}

TEST_F(Preflight, CountsWhatLiesOnADriveThatIsMemoryAsHostMemory) {
  storage_ = [](const std::string& folder) {
    return folder == "/b" ? aio::StorageInfo{.file_system = "overlay on tmpfs", .in_memory = true}
                          : aio::StorageInfo{.file_system = "ext4"};
  };
  const PreflightReport checked = report();
  EXPECT_THAT(checked.table,
              AllOf(HasSubstr("overlay on tmpfs"), HasSubstr("/b, which is memory")));
  EXPECT_THAT(checked.warnings, ElementsAre(HasSubstr("/b is not on")));
  facts_.available_bytes = 11 * kGiB;  // 4 for the run itself and 7 on /b
  EXPECT_THAT(refusal(ErrorCode::kOutOfMemory),
              AllOf(HasSubstr("11G of host memory"), ContainsRegex("7G.*paths in memory")));
  facts_.available_bytes = 12 * kGiB;
  report();
}

TEST_F(Preflight, WarnsWhereWhatIsOverwrittenGoesToNewBlocks) {
  storage_ = [](const std::string& folder) {
    return aio::StorageInfo{.file_system = "zfs", .copies_on_write = folder == "/b"};
  };
  EXPECT_THAT(report().warnings,
              ElementsAre(AllOf(HasSubstr("/b is on zfs"), HasSubstr("cannot be reserved"))));
}

TEST_F(Preflight, SaysWhereAControlGroupLeavesLessThanTheMachine) {
  facts_.cgroup_bytes = 50 * kGiB;
  facts_.cgroup_limit_bytes = 60 * kGiB;
  EXPECT_THAT(report().table, ContainsRegex("46G available.*60G"));
  facts_.available_bytes = 40 * kGiB;
  EXPECT_THAT(report().table, Not(HasSubstr("control group")));
}

TEST_F(Preflight, WarnsOfAPinningLimitThatIsTooLow) {
  facts_.memlock_bytes = 8 * kMiB;
  const PreflightReport checked = report();
  EXPECT_THAT(checked.table, HasSubstr("of 8M (ulimit -l)"));
  EXPECT_THAT(checked.warnings, ElementsAre(AllOf(HasSubstr("3G"), HasSubstr("ulimit -l"))));
  facts_.memlock_bytes = 3 * kGiB;
  EXPECT_THAT(report().warnings, IsEmpty());
}

TEST_F(Preflight, SaysWhyPosixThreadsServe) {
  facts_.uring_refusal = "this kernel has none";
  EXPECT_THAT(report().warnings, ElementsAre(HasSubstr("this kernel has none")));
  EXPECT_THAT(report().table, HasSubstr("threads: this kernel"));
  config_.aio.backend = config::IoBackendChoice::kPosix;
  EXPECT_THAT(report().warnings, IsEmpty());
  EXPECT_THAT(report().table, HasSubstr("(aio.backend)"));
  config_.aio.backend = config::IoBackendChoice::kUring;
  EXPECT_THAT(refusal(ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("this kernel has none"), HasSubstr("aio.backend")));
}

TEST_F(Preflight, AsksNothingOfDrivesThatARunDoesNotUse) {
  plan_.nvme = {{.what = "parameters"}};
  drives_.folders.clear();
  facts_.uring_refusal = "this kernel has none";
  const PreflightReport checked = report();
  EXPECT_THAT(checked.warnings, IsEmpty());
  EXPECT_THAT(checked.table, Not(HasSubstr("NVMe")));
}

TEST_F(Preflight, TakesThisMachineAsItIs) {
  const SmallConfig small({"zero_optimization.offload_optimizer.device=nvme", "run.device=cpu"});
  const config::Config configuration = small.config();
  const ModelLayout model = configured_layout(configuration, /*on_gpu=*/false);
  auto planned = plan_memory(configuration, model);
  ASSERT_OK(planned);
  aio::RealFileSystem files;
  const PreflightReport checked =
      preflight(configuration, *planned, machine_facts(configuration), files);
  ASSERT_OK(checked.verdict);
  EXPECT_THAT(checked.table, HasSubstr("on " + small.folder().file("nvme")));
  EXPECT_TRUE(std::filesystem::is_empty(small.folder().file("nvme")));
}

TEST_F(Preflight, OfSeveralRanksOfAHostDividesMemoryAndAddsUpDrives) {
  config_.budget.cpu_gib = 12;
  facts_.cgroup_bytes = 90 * kGiB;
  facts_.memlock_bytes = 8 * kGiB;
  const config::Budget budget = budget_of_rank(config_.budget, 3);
  EXPECT_EQ(budget.cpu_gib, 4.0);
  EXPECT_EQ(budget.nvme_gib, config_.budget.nvme_gib);
  const MachineFacts facts = facts_of_rank(facts_, 3);
  EXPECT_EQ(facts.available_bytes, 100 * kGiB / 3);
  EXPECT_EQ(facts.cgroup_bytes, 30 * kGiB);
  EXPECT_EQ(facts.memlock_bytes, 8 * kGiB);  // a limit per process
  const MemoryPlan all = plan_of_host(plan_, 3);
  EXPECT_EQ(all.host_bytes(), plan_.host_bytes());
  EXPECT_EQ(all.nvme_bytes(), 24 * kGiB);
  EXPECT_EQ(all.nvme[0].paths[1].bytes, 3 * kGiB);
}

TEST(MachineFacts, GiveTheSmallestOfWhatTheHostSaysLessAMargin) {
  MachineFacts facts;
  EXPECT_FALSE(host_room({}, facts).has_value());
  facts.available_bytes = 200 * kGiB;
  EXPECT_EQ(host_free(facts), 200 * kGiB);
  facts.cgroup_bytes = 100 * kGiB;
  EXPECT_EQ(host_free(facts), 100 * kGiB);
  EXPECT_EQ(host_room({}, facts), 92 * kGiB);
  EXPECT_EQ(host_room({.cpu_gib = 300.0}, facts), 300 * kGiB);
}

TEST(MachineFacts, CountTheContextOfCudaAsTheRuns) {
  MachineFacts facts;
  EXPECT_FALSE(gpu_room({}, facts).has_value());
  facts.gpu = GpuMemory{.free_bytes = 70 * kGiB, .total_bytes = 80 * kGiB};
  EXPECT_EQ(gpu_free(facts), 70 * kGiB + kCudaContextBytes);
  facts.gpu->free_bytes = 80 * kGiB;
  EXPECT_EQ(gpu_free(facts), 80 * kGiB);
  EXPECT_EQ(gpu_room({.gpu_gib = 4.0}, facts), 4 * kGiB);
  EXPECT_EQ(gpu_room({.gpu_gib = 100.0}, facts), 80 * kGiB);
}

}  // namespace
}  // namespace sluice::engine
