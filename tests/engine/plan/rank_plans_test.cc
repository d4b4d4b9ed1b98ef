// Plans of runs over several ranks: for one rank with its share of a host, and for all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "engine/plan/shared_placement.h"
#include "tests/engine/comm/tcp_ranks.h"
#include "tests/engine/plan/plan_under_test.h"
#include "tests/engine/random_places.h"

namespace sluice::engine {
namespace {

using offload::TierBytes;
using offload::Topology;
using testing::HasSubstr;

constexpr Topology kFour{.world = 4, .local_world = 4};

config::Config on_four(const std::vector<std::string>& overrides = {}) {
  return planned_config(overrides, 4);
}

PlanRunOptions options_of(const Topology& ranks) {
  DescribedMachine machine = described();
  machine.link_gb_per_s = 100;
  machine.network_gb_per_s = 50;
  return {.machine = machine, .ranks = ranks};
}

TEST(RankPlans, CountWhatTheMemoryPlanOfEachRankCounts) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomPlaces random(seed);
  const std::vector<std::string> adapters = {"model.preset=qwen2.5-1.5b", "recipe.lora.rank=8"};
  const std::vector<std::string> stage3 = {"zero_optimization.stage=3"};
  const std::vector<std::string> stage1 = {"zero_optimization.stage=1"};
  const Topology on_two_hosts{.world = 4, .local_world = 2};
  for (const auto& [overrides, ranks] : {std::pair(stage3, kFour),
                                         {stage1, on_two_hosts},
                                         {adapters + stage3, on_two_hosts},
                                         {adapters + stage1, kFour}}) {
    const config::Config config = on_four(overrides);
    const ModelLayout model = configured_layout(config, true);
    ProbeReport machine;
    machine.units = UnitTimes(model);
    const auto input =
        planner_input({.config = config,
                       .model = model,
                       .machine = machine,
                       .on_gpu = true,
                       .budget = {.gpu = 1ULL << 40, .cpu = 1ULL << 42, .nvme = 1ULL << 44},
                       .ranks = ranks});
    ASSERT_TRUE(input.ok()) << input.error().message();
    for (int round = 0; round < 20 && !HasFailure(); ++round) {
      const SharedPlacement whole{.places = random.of(model), .block_slots = input->step.slots()};
      const auto first = whole.options(model, ranks.part(0), true);
      ASSERT_TRUE(first.ok());
      SharedPlacement places{.places = first->places, .block_slots = input->step.slots()};
      for (offload::UnitPlacement& place : places.places)
        if (!model.has_frozen()) place.resident = config.zero.stage < 3;
      TierBytes most;
      for (int rank = 0; rank < 4; ++rank) {
        const auto options = places.options(model, ranks.part(rank), true);
        const auto memory = plan_memory(config, model, *options);
        ASSERT_TRUE(memory.ok()) << memory.error().message();
        const TierBytes used = used_by(*memory);
        if (rank == 0) most = used;
        // Sub-groups may end at other places in another rank's shards.
        EXPECT_LE(used.cpu, most.cpu + kMiB) << rank;
        EXPECT_LE(used.nvme, most.nvme + kMiB) << rank;
      }
      const TierBytes ledger = (*input).ledger->bytes(places.places);
      EXPECT_EQ(ledger.gpu, most.gpu);
      EXPECT_EQ(ledger.cpu, most.cpu);
      EXPECT_EQ(ledger.nvme, most.nvme);
    }
  }
}

TEST(RankPlans, ShareWhatAHostHas) {
  const config::Config config = on_four(shape(40, 5120, 40));
  const RunPlan plan = planned(config, options_of(kFour));
  ASSERT_TRUE(plan.placement.fits);
  EXPECT_EQ(plan.input.budget.cpu, 16ULL * kGiB);
  EXPECT_EQ(plan.input.budget.nvme, 125ULL * kGiB);
  EXPECT_LE(used_by(plan.memory).cpu, 16ULL * kGiB);
  EXPECT_EQ(plan.tokens_per_step, 4 * 4 * 1024);
  std::uint64_t elements = 0;
  for (const offload::UnitPlacement& place : plan.placement.places) {
    EXPECT_FALSE(place.resident);
    elements += place.gpu_elements + place.cpu_elements + place.nvme_elements;
  }
  EXPECT_NEAR(static_cast<double>(elements), static_cast<double>(plan.parameters) / 4,
              0.001 * static_cast<double>(plan.parameters));
  EXPECT_NEAR(plan.placement.prediction.link_bytes, 0.75 * (4 + 2 * 2) * 1.3e10, 2e10);
  const std::string text = format_plan(config, plan, {});
  EXPECT_THAT(text, HasSubstr("4 ranks, all on"));
  EXPECT_THAT(text, HasSubstr("each of 4 ranks"));
  EXPECT_THAT(text, HasSubstr("link between ranks"));
}

// Four GPUs and the same host: state that does not fit one GPU is divided among all, so that less
// of it waits for drives.
TEST(RankPlans, AreFasterOnMoreGpusOfAHost) {
  const std::vector<std::string> model = shape(40, 5120, 40);
  const RunPlan one = planned(planned_config(model), options_of({}));
  const RunPlan four = planned(on_four(model), options_of(kFour));
  ASSERT_TRUE(one.placement.fits && four.placement.fits);
  const auto tokens_per_s = [](const RunPlan& plan) {
    return static_cast<double>(plan.tokens_per_step) / plan.placement.prediction.step_s;
  };
  EXPECT_GT(tokens_per_s(four), 2 * tokens_per_s(one));
  PlanRunOptions slow = options_of(kFour);
  slow.machine.link_gb_per_s = 1;
  const RunPlan waiting = planned(on_four(model), slow);
  EXPECT_LT(tokens_per_s(waiting), tokens_per_s(four));
  EXPECT_EQ(waiting.placement.prediction.bottleneck, offload::Resource::kLink);
}

TEST(RankPlans, KeepAllOfAUnitWhereTheStageSaysSo) {
  const RunPlan plan = planned(on_four({"zero_optimization.stage=2"}), options_of(kFour));
  ASSERT_TRUE(plan.placement.fits);
  EXPECT_TRUE(std::all_of(plan.placement.places.begin(), plan.placement.places.end(),
                          [](const offload::UnitPlacement& place) { return place.resident; }));
  EXPECT_GT(plan.placement.prediction.link_bytes, 0);
}

// A host's share of the base, and the traffic between ranks. At stage 3 it is a quarter, and each
// pass gathers it. Otherwise it is the whole base, and only the adapters' shards and sums are
// exchanged.
TEST(RankPlans, DivideTheBaseOfAdaptersAtStageThreeAlone) {
  const std::vector<std::string> adapters = {"model.preset=qwen3-8b", "recipe.lora.rank=16",
                                             "zero_optimization.offload_param.device=cpu"};
  const RunPlan whole = planned(
      on_four(adapters + std::vector<std::string>{"zero_optimization.stage=2"}), options_of(kFour));
  const RunPlan shards = planned(
      on_four(adapters + std::vector<std::string>{"zero_optimization.stage=3"}), options_of(kFour));
  ASSERT_TRUE(whole.placement.fits && shards.placement.fits);
  const auto host_bytes = [](const RunPlan& plan) {
    return static_cast<double>(plan.memory.host.front().bytes);
  };
  EXPECT_NEAR(host_bytes(shards), host_bytes(whole) / 4, 0.01 * host_bytes(whole));
  const double blocks_bytes = host_bytes(whole);  // embedding and head stay on the GPUs
  EXPECT_LT(whole.placement.prediction.link_bytes, 0.1 * blocks_bytes);
  EXPECT_NEAR(shards.placement.prediction.link_bytes - whole.placement.prediction.link_bytes,
              0.75 * 2 * blocks_bytes, 0.1 * blocks_bytes);
}

TEST(RankGrowth, BeginsWithOneRankAndEndsWithThePlan) {
  const auto groups = growing_ranks({.world = 24, .local_world = 6});
  const std::vector<Topology> wanted = {{1, 1}, {2, 2}, {4, 4}, {6, 6}, {12, 6}, {24, 6}};
  EXPECT_EQ(groups, wanted);
  EXPECT_EQ(growing_ranks({}), std::vector<Topology>{Topology()});
}

TEST(RankGrowth, IsLessThanLinearOnASlowNetwork) {
  PlanRunOptions options = options_of({.world = 16, .local_world = 4});
  options.with_growth = true;
  options.machine.network_gb_per_s = 2;
  const RunPlan plan = planned(planned_config({}, 16), options);
  ASSERT_EQ(plan.growth.size(), 5);
  EXPECT_EQ(plan.growth.front().share_of_linear, 1);
  EXPECT_EQ(plan.growth.back().step_s, plan.placement.prediction.step_s);
  const double in_host = plan.growth[2].share_of_linear;
  EXPECT_GT(in_host, 0.5);
  EXPECT_LT(plan.growth[3].share_of_linear, 0.5 * in_host);
  EXPECT_EQ(plan.growth[3].bottleneck, offload::Resource::kLink);
  EXPECT_GT(plan.growth[3].link_exposed_s, 10 * plan.growth[2].link_exposed_s);
  EXPECT_THAT(format_plan(planned_config({}, 16), plan, {}), HasSubstr("8 on 2 hosts"));
  EXPECT_TRUE(
      planned(planned_config({}, 16), options_of({.world = 16, .local_world = 4})).growth.empty());
}

// A budget of RAM is per host: what is missing is per rank, but the advice is for the host.
TEST(RankPlans, AdviseBudgetsOfAHost) {
  PlanRunOptions options = options_of(kFour);
  options.machine.cpu_gib = 8;
  options.machine.nvme_gib.reset();
  config::Config config = on_four(shape(40, 5120, 40));
  config.budget.nvme_paths.clear();
  const RunPlan plan = planned(config, options);
  ASSERT_FALSE(plan.placement.fits);
  for (const offload::FitHint& hint : plan.hints) {
    if (hint.change != offload::FitHint::Change::kMoreCpu) continue;
    const double gib = 4 * static_cast<double>(plan.input.budget.cpu + hint.more_bytes) / kGiB;
    EXPECT_GT(gib, 100);
    options.machine.cpu_gib = gib;
    EXPECT_TRUE(planned(config, options).placement.fits);
    EXPECT_THAT(does_not_fit(config, plan), HasSubstr("each of 4 ranks"));
    return;
  }
  FAIL() << "more RAM would do";
}

TEST(SharedPlacement, AreTheFirstRanksEverywhere) {
  const SharedPlacement places{.places = {{.gpu_elements = 5,
                                           .cpu_elements = 1,
                                           .nvme_elements = 7,
                                           .resident = true,
                                           .activations = offload::ActivationPlace::kSpill},
                                          {.cpu_elements = 1ULL << 40, .params_on_nvme = true}},
                               .block_slots = 3,
                               .wave_micro_batches = 2,
                               .nvme_weights = {3, 1}};
  const auto told = in_threads(
      options_of(std::vector<RankPlace>{{.host = "here"}, {.host = "here", .local_rank = 1}}),
      [&](int rank, Communicator& link) {
        const auto shared = share_placement(link, rank == 0 ? std::optional(places) : std::nullopt);
        ASSERT_TRUE(shared.ok()) << shared.error().message();
        EXPECT_EQ(*shared, places);
      });
  for (const Status& status : told) EXPECT_TRUE(status.ok());
}

TEST(SharedPlacement, LackInTheLastShardWhatTheUnitLacks) {
  const config::Config config = on_four();
  const ModelLayout model = configured_layout(config, true);
  SharedPlacement places;
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements =
        offload::shard_of(model.layout(unit).elements, {.rank = 0, .world = 7}).elements;
    places.places.push_back(
        {.gpu_elements = 100, .cpu_elements = elements - 300, .nvme_elements = 200});
  }
  const auto last = places.options(model, {.rank = 6, .world = 7}, true);
  ASSERT_TRUE(last.ok());
  bool lacks = false;
  for (int unit = 0; unit < model.units(); ++unit) {
    const offload::UnitPlacement& place = last->places[static_cast<std::size_t>(unit)];
    const std::uint64_t elements =
        offload::shard_of(model.layout(unit).elements, {.rank = 6, .world = 7}).elements;
    EXPECT_EQ(place.gpu_elements + place.cpu_elements + place.nvme_elements, elements);
    EXPECT_EQ(place.gpu_elements, 100);
    lacks = lacks || place.nvme_elements < 200;
  }
  EXPECT_TRUE(lacks);
  places.places.pop_back();
  EXPECT_EQ(places.options(model, {.rank = 6, .world = 7}, true).error().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::engine
