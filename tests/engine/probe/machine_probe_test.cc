#include "engine/probe/machine_probe.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/config/resolve.h"
#include "engine/runtime/make_parts.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr std::int64_t kNow = 1'772'366'400;

// A small model on the CPU, two folders as drives, and little memory, so that the probe is fast.
class MachineProbeTest : public testing::Test {
 protected:
  MachineProbeTest() {
    for (const char* name : {"a", "b", "c"}) std::filesystem::create_directory(folder_.file(name));
  }
  config::Config config(const std::vector<std::string>& overrides = {}) const {
    config::Sources sources;
    sources.run_file = config::Source{"test", R"({
      "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
      "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
      "run": {"cpu_threads": 2, "device": "cpu"},
      "aio": {"block_size": 65536, "queue_depth": 2, "backend": "posix"},
      "budget": {"cpu_gib": 0.4}
    })"};
    sources.overrides = {"budget.nvme_paths=[\"" + folder_.file("a") + "\"]"};
    sources.overrides.insert(sources.overrides.end(), overrides.begin(), overrides.end());
    const auto resolved = config::resolve(sources);
    if (!resolved.ok()) throw std::runtime_error(resolved.error().message());
    return resolved->config;
  }

  ProbeReport probe(const std::vector<std::string>& overrides = {}, bool refresh = false) {
    measured_.clear();
    double last = 0;
    auto report =
        probe_machine(config(overrides), {.cache_path = folder_.file("cache/speeds.json"),
                                          .refresh = refresh,
                                          .unix_s = kNow,
                                          .cpu_use = [this] { return next_cpu_use(); },
                                          .cores = cores_,
                                          .most_spread = 1e9,
                                          .on_progress =
                                              [&](const std::string& what, double fraction) {
                                                measured_.insert(what);
                                                EXPECT_GE(fraction, last);
                                                EXPECT_LE(fraction, 1);
                                                last = fraction;
                                              }});
    if (!report.ok()) throw std::runtime_error(report.error().message());
    return std::move(*report);
  }

  const aio::TemporaryFolder folder_;
  std::set<std::string> measured_;  // in the last probe
  double lost_ = 0;                 // simulated, like the cores, and so independent of load
  double cores_ = 2;

 private:
  CpuUse next_cpu_use() {
    constexpr std::int64_t kSecond = 1'000'000'000;
    now_.wall_ns += kSecond;
    const auto lost_ns = static_cast<std::int64_t>(lost_ * kSecond);
    now_.ran_ns += kSecond - lost_ns;
    now_.waited_ns = *now_.waited_ns + lost_ns;
    return now_;
  }

  CpuUse now_{.waited_ns = 0};
};

TEST_F(MachineProbeTest, MeasuresOnceAndThenOnlyWhatIsAnotherSetting) {
  const std::string memory = "memory and cores";
  const std::string units = "the model's units";
  const std::string drive = folder_.file("a");
  const ProbeReport first = probe();
  EXPECT_THAT(measured_, UnorderedElementsAre(memory, drive, units));
  EXPECT_GT(first.speeds.host_copy_bytes_per_s, 0);
  EXPECT_GT(first.speeds.cpu_adamw_elements_per_s, 0);
  EXPECT_GT(first.speeds.drives.in_both_bytes_per_s, 0);
  EXPECT_GT(first.units.of("block").backward_s, 0);
  EXPECT_EQ(first.speeds.bus.in_bytes_per_s, 0);  // no GPU is used
  EXPECT_EQ(first.speeds.gpu_matmul_flops_per_s, 0);
  EXPECT_FALSE(first.host_when.cached);

  const ProbeReport again = probe();
  EXPECT_THAT(measured_, IsEmpty());
  EXPECT_EQ(again.speeds.host_copy_bytes_per_s, first.speeds.host_copy_bytes_per_s);
  EXPECT_EQ(again.speeds.drives.out_bytes_per_s, first.speeds.drives.out_bytes_per_s);
  EXPECT_EQ(again.units.of("head").forward_s, first.units.of("head").forward_s);
  EXPECT_TRUE(again.host_when.cached && again.drives_when.cached && again.units_when.cached);

  probe({"aio.queue_depth=3"});
  EXPECT_THAT(measured_, ElementsAre(drive));
  probe({"data.sequence_length=8"});
  EXPECT_THAT(measured_, ElementsAre(units));
  probe({"train_micro_batch_size_per_gpu=3"});
  EXPECT_THAT(measured_, ElementsAre(units));
  probe({"run.cpu_threads=1"});
  EXPECT_THAT(measured_, UnorderedElementsAre(memory, units));
  probe({}, true);
  EXPECT_EQ(measured_.size(), 3U);
}

// Like a machine on which every thread waits for a core nine tenths of the time.
TEST_F(MachineProbeTest, MeasuresAHostWithTheThreadsOfAllItsRanks) {
  const auto report = probe_machine(
      config({"run.cpu_threads=1"}),
      {.unix_s = kNow, .units = false, .local_ranks = 3, .cores = 3, .most_spread = 1e9});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_THAT(report->cpu, HasSubstr("3 threads"));
}

TEST_F(MachineProbeTest, SaysThatTheMachineWasBusyAndKeepsNothingOfIt) {
  lost_ = 0.9;
  const ProbeReport busy = probe();
  EXPECT_EQ(busy.disturbances.size(), 3U);
  EXPECT_TRUE(busy.host_when.disturbed && busy.drives_when.disturbed && busy.units_when.disturbed);
  EXPECT_THAT(busy_warning(busy), ContainsRegex("other work.*90%"));
  lost_ = 0;
  const ProbeReport quiet = probe();
  EXPECT_EQ(measured_.size(), 3U);
  EXPECT_EQ(busy_warning(quiet), "");
  probe();
  EXPECT_THAT(measured_, IsEmpty());
}

// Two threads that share one core wait half of the time; a drive's threads do not.
TEST_F(MachineProbeTest, IsNotDisturbedByTheRunsOwnThreads) {
  lost_ = 0.5;
  cores_ = 1;
  const ProbeReport report = probe();
  EXPECT_FALSE(report.host_when.disturbed || report.units_when.disturbed);
  EXPECT_TRUE(report.drives_when.disturbed);
}

TEST_F(MachineProbeTest, TakesAsManyThreadsAsThereAreCoresToRunOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(compute_threads(config({"run.cpu_threads=0"})), 1);
  EXPECT_EQ(compute_threads(config({"run.cpu_threads=3"})), 3);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST_F(MachineProbeTest, MeasuresAnewWhatTurnedOutToBeWrongAndNothingElse) {
  const std::string other = "aio.queue_depth=3";
  probe({other});
  const ProbeReport wrong = probe();
  ASSERT_TRUE(forget_measurements(config(), wrong, kNow + 1).ok());
  probe();
  EXPECT_EQ(measured_.size(), 3U);
  probe({other});
  EXPECT_THAT(measured_, IsEmpty());
}

// So that a plan can say what does not fit, rather than the probe failing to allocate.
TEST_F(MachineProbeTest, EstimatesUnitsThatDoNotFitTheBudget) {
  const ProbeReport report = probe({"train_micro_batch_size_per_gpu=65536"});
  EXPECT_TRUE(report.units_when.estimated);
  EXPECT_GT(report.units.of("block").backward_s, 0);
}

TEST_F(MachineProbeTest, MeasuresPathsAloneAndTogether) {
  const ProbeReport report =
      probe({"budget.nvme_paths=[\"" + folder_.file("a") + "\", \"" + folder_.file("b") + "\"]"});
  EXPECT_EQ(measured_.count("all NVMe paths together"), 1U);
  ASSERT_EQ(report.paths.size(), 2U);
  EXPECT_EQ(report.paths[1].path, folder_.file("b"));
  EXPECT_GT(report.speeds.drives.in_bytes_per_s, 0);
  const ProbeReport none = probe({"budget.nvme_paths=[]"});
  EXPECT_THAT(none.paths, IsEmpty());
  EXPECT_EQ(none.speeds.drives.in_bytes_per_s, 0);
}

// A third of the time suffices for each of three drives, but not for planning with a single one.
TEST_F(MachineProbeTest, DoesNotTakeAShortMeasurementForAFullOne) {
  const auto folder = [&](const char* name) { return "\"" + folder_.file(name) + "\""; };
  const std::string three =
      "budget.nvme_paths=[" + folder("a") + ", " + folder("b") + ", " + folder("c") + "]";
  probe({three});
  probe({three});
  EXPECT_THAT(measured_, IsEmpty());
  probe();
  EXPECT_THAT(measured_, ElementsAre(folder_.file("a")));
}

TEST_F(MachineProbeTest, MeasuresTogetherWithTheWeightsThatTheRunHas) {
  const std::string together = "all NVMe paths together";
  const std::string two =
      "budget.nvme_paths=[\"" + folder_.file("a") + "\", \"" + folder_.file("b") + "\"]";
  const auto weights = [](const ProbeReport& report) {
    return std::vector<int>{report.paths.at(0).weight, report.paths.at(1).weight};
  };
  const ProbeReport by_speed = probe({two});
  // Folders of one drive, whose speed is measured once.
  EXPECT_EQ(by_speed.paths[0].sharers, 2);
  EXPECT_EQ(by_speed.paths[1].sharers, 2);
  EXPECT_THAT(weights(by_speed), ElementsAre(1, 1));
  const ProbeReport named = probe({two, "placement.nvme_weights=[3,1]"});
  EXPECT_THAT(measured_, ElementsAre(together));
  EXPECT_THAT(weights(named), ElementsAre(3, 1));
  const ProbeReport again = probe({two, "placement.nvme_weights=[3,1]"});
  EXPECT_THAT(measured_, IsEmpty());
  EXPECT_EQ(again.speeds.drives.in_bytes_per_s, named.speeds.drives.in_bytes_per_s);
  EXPECT_THAT(weights(probe({two, "placement.nvme_weights=equal"})), ElementsAre(1, 1));
  EXPECT_THAT(measured_, IsEmpty());
}

// Files written before there were weights do not contain any.
TEST_F(MachineProbeTest, MeasuresTogetherAnewWhatAnOldFileHas) {
  const std::string two =
      "budget.nvme_paths=[\"" + folder_.file("a") + "\", \"" + folder_.file("b") + "\"]";
  probe({two});
  std::ifstream file(folder_.file("cache/speeds.json"));
  auto cache = nlohmann::json::parse(file);
  file.close();
  int old = 0;
  for (auto& measurement : cache["measurements"])
    old += static_cast<int>(measurement["of"].erase("weights"));
  EXPECT_EQ(old, 1);
  std::ofstream(folder_.file("cache/speeds.json")) << cache.dump();
  probe({two});
  EXPECT_THAT(measured_, ElementsAre("all NVMe paths together"));
}

}  // namespace
}  // namespace sluice::engine
