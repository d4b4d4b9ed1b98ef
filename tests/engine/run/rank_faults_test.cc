// Training on several ranks with a fault at each of their collectives, in steps, evaluation, saves
// and resuming. All end with an error that names the rank and its call. Nothing is left behind, and
// the previous checkpoint is whole and can be resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "aio/log.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/run/run_checkpoints.h"
#include "tests/engine/comm/faulty_communicator.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/run/run_under_test.h"
#include "tests/engine/run/silent_log.h"

namespace sluice::engine {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::ContainsRegex;
using testing::HasSubstr;

// Ranks wait 20 s for each other's calls, so one that ends earlier was notified.
constexpr seconds kEndsWithin{10};

// Resources of a process that a run might leak.
struct Held {
  std::ptrdiff_t descriptors = entries("/proc/self/fd");
  std::ptrdiff_t threads = entries("/proc/self/task");

  bool operator==(const Held&) const = default;
};

void must_be(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message());
}

// How each rank's part of a run ended, and which calls it made.
struct End {
  std::string error;  // empty: success
  std::vector<std::string> calls;
};

class FaultyRanks {
 public:
  // `background`: the save continues during a further step.
  explicit FaultyRanks(int world, int hosts = 1, bool background = false)
      : background_(background),
        world_(world),
        of_host_(world / hosts),
        small_({"gradient_accumulation_steps=1", "run.lanes=" + std::to_string(world),
                "model.layers=1", "data.dtype=uint16", "run.eval_batches=2",
                "zero_optimization.offload_optimizer.device=nvme",
                "zero_optimization.offload_param.device=nvme",
                "zero_optimization.stage3_param_persistence_threshold=0"}) {}

  // Runs from the newest checkpoint, if there is one, for one step, and saves, with weights and
  // trace.
  std::vector<End> run(int victim, const CallFault& fault) {
    std::vector<RankPlace> places;
    for (int rank = 0; rank < world_; ++rank)
      places.push_back(
          {.host = "host" + std::to_string(rank / of_host_), .local_rank = rank % of_host_});
    std::vector<End> ends(places.size());
    const auto begin = steady_clock::now();
    const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
      FaultyCommunicator faulty(link, rank == victim ? fault : CallFault());
      End& end = ends[static_cast<std::size_t>(rank)];
      try {
        train(link.topology().part(rank), faulty);
      } catch (const std::exception& error) {
        end.error = error.what();
        link.abort(end.error);
      }
      // Errors after a run's last report show only here.
      if (end.error.empty() && !link.health().ok()) end.error = link.health().error().message();
      end.calls = faulty.calls();
    });
    for (const Status& status : met) EXPECT_OK(status);
    EXPECT_LT(steady_clock::now() - begin, kEndsWithin);
    EXPECT_EQ(entries(small_.drives().front()), 0) << "stores are left";
    return ends;
  }

  // The step of the newest complete, undamaged checkpoint; -1: there is none.
  std::int64_t newest_step() {
    if (!std::filesystem::exists(checkpoints())) return -1;
    const auto backend = aio::make_backend({}).value();
    const auto queue = aio::make_queue_or_die(*backend, {});
    const auto newest = CheckpointFolder(*queue, checkpoints()).newest();
    EXPECT_OK(newest);
    if (!newest.ok() || !*newest) return -1;
    const auto report = verify_checkpoint(*queue, (*newest)->path, {});
    EXPECT_OK(report);
    EXPECT_TRUE(report->damaged.empty()) << (*newest)->path;
    return report->step;
  }
  void remove_step(std::int64_t step) {
    const auto backend = aio::make_backend({}).value();
    const auto queue = aio::make_queue_or_die(*backend, {});
    std::filesystem::remove_all(CheckpointFolder(*queue, checkpoints()).path_of(step));
  }

 private:
  std::string directory() const { return small_.config(world_).run.dir; }
  std::string checkpoints() const { return RunCheckpoints::folder_of(directory()); }

  void begin(TrainingRun& run) {
    CheckpointFolder folder(*run.drives().reads, checkpoints());
    const auto newest = folder.newest();
    must_be(newest.status());
    if (*newest) {
      auto reader = CheckpointReader::open(*run.drives().reads, (*newest)->path, {});
      must_be(reader.status());
      must_be(run.begin_together(run.resume(**reader, {})));
    } else {
      must_be(run.begin_together(run.initialise({})));
    }
  }

  void train(const offload::RankPart& part, Communicator& link) {
    const auto run = small_.make({.ranks = part}, link);
    run->trace().start({.first_step = 1, .last_step = 100});
    begin(*run);
    if (part.rank > 0) return must_be(run->follow());
    run->step();
    run->evaluate();
    auto checkpoints = RunCheckpoints::create(
        *run, *run->drives().saves, {.directory = directory(), .background = background_});
    must_be(checkpoints.status());
    must_be((*checkpoints)->save({}));
    if (background_) run->step();
    (*checkpoints)->wait();
    must_be((*checkpoints)->finished().at(0).status);
    must_be(run->save_weights(small_.folder().file("weights.safetensors"), DType::kF32));
    must_be(run->write_trace(small_.folder().file("trace.json")));
  }

  const bool background_;
  const int world_;
  const int of_host_;
  const SmallRun small_;
};

void expect_ends(const std::vector<End>& ends, int victim, const std::string& call) {
  const std::string name = "rank " + std::to_string(victim);
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    const std::string& error = ends[static_cast<std::size_t>(rank)].error;
    EXPECT_THAT(error, HasSubstr(call + ": the cable was pulled")) << "rank " << rank;
    if (rank != victim) {
      EXPECT_THAT(error, ContainsRegex(name + " .host[0-9]. ended the run"));
    }
  }
}

// Fails every `stride`-th call of each rank, alternately before and after the call is done.
void fail_calls(std::uint64_t stride, bool begins_after, bool background) {
  const SilentLog silent;
  constexpr int kWorld = 2;
  FaultyRanks ranks(kWorld, /*hosts=*/1, background);
  for (const End& end : ranks.run(0, {})) ASSERT_EQ(end.error, "");
  ASSERT_EQ(ranks.newest_step(), 1);
  const std::vector<End> whole = ranks.run(0, {});  // a resumed run
  for (const End& end : whole) ASSERT_EQ(end.error, "");
  ASSERT_EQ(ranks.newest_step(), 2);
  ranks.remove_step(2);
  const Held before;
  std::map<std::string, int> points;
  for (int victim = 0; victim < kWorld; ++victim) {
    const std::vector<std::string>& calls = whole[static_cast<std::size_t>(victim)].calls;
    for (std::uint64_t nth = 1; nth <= calls.size(); nth += stride) {
      const CallFault fault{.nth = nth, .after = (nth / stride % 2 == 1) != begins_after};
      SCOPED_TRACE("rank " + std::to_string(victim) + ", call " + std::to_string(nth) + " of " +
                   std::to_string(calls.size()) + (fault.after ? ", once done" : ""));
      expect_ends(ranks.run(victim, fault), victim, calls[nth - 1]);
      EXPECT_EQ(Held().descriptors, before.descriptors);
      EXPECT_EQ(Held().threads, before.threads);
      const std::int64_t step = ranks.newest_step();
      EXPECT_TRUE(step == 1 || step == 2) << step;
      if (step == 2) ranks.remove_step(2);
      ++points[calls[nth - 1]];
      if (testing::Test::HasFailure()) return;
    }
  }
  for (const End& end : ranks.run(0, {})) EXPECT_EQ(end.error, "");
  EXPECT_EQ(ranks.newest_step(), 2);
  std::string tried;
  for (const auto& [name, count] : points) tried += " " + std::to_string(count) + " " + name;
  std::cout << "calls that failed:" << tried << "\n";
}

class RankFaults : public testing::TestWithParam<bool> {};
class LongRankFaults : public testing::TestWithParam<bool> {};

TEST_P(RankFaults, EndBothRanksByNameAtAnyCollective) { fail_calls(3, false, GetParam()); }

// The first exchange of a unit's sum is among the ranks of a host, the second among hosts.
TEST(RankFaultsOnHosts, EndAllRanksOfTwoHostsByNameInEitherHop) {
  const SilentLog silent;
  FaultyRanks ranks(/*world=*/4, /*hosts=*/2);
  const std::vector<End> whole = ranks.run(0, {});
  for (const End& end : whole) ASSERT_EQ(end.error, "");
  ranks.remove_step(1);
  for (int victim = 0; victim < 4 && !HasFailure(); ++victim) {
    const std::vector<std::string>& calls = whole[static_cast<std::size_t>(victim)].calls;
    auto call = std::find(calls.begin(), calls.end(), "all_to_all");
    for (const bool among_hosts : {false, true}) {
      ASSERT_NE(call, calls.end());
      const auto nth = static_cast<std::uint64_t>(call - calls.begin()) + 1;
      SCOPED_TRACE("rank " + std::to_string(victim) + ", call " + std::to_string(nth));
      const CallFault fault{.nth = nth, .after = (victim % 2 == 0) == among_hosts};
      expect_ends(ranks.run(victim, fault), victim, "all_to_all");
      call = std::find(call + 1, calls.end(), "all_to_all");
    }
  }
  for (const End& end : ranks.run(0, {})) EXPECT_EQ(end.error, "");
}

TEST_P(LongRankFaults, EndBothRanksByNameAtEveryCollective) {
  fail_calls(1, false, GetParam());
  fail_calls(1, true, GetParam());
}

std::string save_name(const testing::TestParamInfo<bool>& save) {
  return save.param ? "savesInBackground" : "savesInForeground";
}
INSTANTIATE_TEST_SUITE_P(All, RankFaults, testing::Bool(), save_name);
INSTANTIATE_TEST_SUITE_P(All, LongRankFaults, testing::Bool(), save_name);

}  // namespace
}  // namespace sluice::engine
