// Several ranks on this machine, as threads: with the same lanes, the same bits as one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/step/rank_reduction.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

struct Outcome {
  std::vector<double> losses;
  double norm = 0;
  double validation = 0;
  std::vector<float> masters;

  bool operator==(const Outcome&) const = default;
};

constexpr int kSteps = 4;

// By so many ranks; on this thread's rank.
Outcome train_rank(const SmallRun& small, const offload::RankPart& part, Communicator* link) {
  const auto run = small.start({.ranks = part}, link);
  Outcome outcome;
  if (part.rank > 0) {
    EXPECT_OK(run->follow());
    return outcome;
  }
  for (int i = 0; i < kSteps; ++i) {
    const StepOutcome step = run->step();
    outcome.losses.push_back(step.loss);
    outcome.norm = step.grad_norm;
  }
  outcome.validation = run->evaluate();
  outcome.masters = masters_of(*run);
  return outcome;
}

std::vector<Outcome> train_on(int world, std::vector<std::string> overrides,
                              int micro_batches = 4) {
  overrides.push_back("gradient_accumulation_steps=" + std::to_string(micro_batches / world));
  const SmallRun small(overrides);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world));
  if (world == 1) return {train_rank(small, {}, nullptr)};
  std::vector<RankPlace> places;
  for (int rank = 0; rank < world; ++rank) places.push_back({.host = "here", .local_rank = rank});
  const auto met = in_threads(options_of(places), [&](int rank, Communicator& link) {
    try {
      outcomes[static_cast<std::size_t>(rank)] = train_rank(small, {rank, world}, &link);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
      link.abort(error.what());
    }
  });
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << message_of(status);
  return outcomes;
}

struct RankVariant {
  const char* name;
  std::vector<std::string> overrides;
  std::vector<int> worlds = {2, 4};
  int micro_batches = 4;
};

class RanksIn : public testing::TestWithParam<RankVariant> {};

TEST_P(RanksIn, ChangeNoBit) {
  std::vector<std::string> overrides = {"run.lanes=4"};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  const Outcome one = train_on(1, overrides, GetParam().micro_batches).front();
  ASSERT_FALSE(one.masters.empty());
  for (const int world : GetParam().worlds) {
    const std::vector<Outcome> many = train_on(world, overrides, GetParam().micro_batches);
    EXPECT_EQ(many.front(), one) << world << " ranks";
  }
}

std::vector<RankVariant> rank_variants() {
  const std::vector<std::string> on_nvme = {
      "zero_optimization.offload_optimizer.device=nvme",
      "zero_optimization.offload_param.device=nvme",
      "zero_optimization.stage3_param_persistence_threshold=0",
      "zero_optimization.sub_group_size=1000", "placement.boundaries_to_nvme=on"};
  return {{"bf16", {}},
          {"fp32", {"bf16.enabled=false"}},
          {"fp16", {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=8"}},
          {"bf16Moments", {"optimizer.params.moments=bf16"}},
          {"notOverlapped", {"placement.overlap_update=false"}},
          {"onNvme", on_nvme},
          {"groups", kInGroups},
          {"waves", {"placement.wave_micro_batches=1"}},
          {"twelveLanes", {"run.lanes=12"}, {2, 3, 4, 6}, 12},
          {"twelveLanesInWaves", {"run.lanes=12", "placement.wave_micro_batches=1"}, {2, 4}, 12},
          {"sixLanesOfTwo", {"run.lanes=6"}, {2, 3}, 12},
          {"rounds", {"run.lanes=3", "run.rounds=2"}, {3}, 6},
          {"roundsInWaves",
           {"run.lanes=6", "run.rounds=2", "placement.wave_micro_batches=2"},
           {2},
           24}};
}

INSTANTIATE_TEST_SUITE_P(Cpu, RanksIn, testing::ValuesIn(rank_variants()),
                         [](const auto& name) { return std::string(name.param.name); });

}  // namespace
}  // namespace sluice::engine
