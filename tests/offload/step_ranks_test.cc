// Steps of several ranks: computed by hand, to the second, and properties for any step.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "offload/planner/step_graph.h"
#include "offload/planner/step_model.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

constexpr double kSameTime = 1e-9;

// Two ranks with shards of 10, 20 and 10 elements. link_of_two() gathers the whole units in 1, 2
// and 1 s, and exchanges their sums in the same times.
std::vector<UnitCost> sharded_units() {
  return {
      {.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 2, .whole_elements = 20},
      {.name = "h0",
       .elements = 20,
       .forward_s = 3,
       .recompute_s = 2,
       .backward_s = 6,
       .whole_elements = 40},
      {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 2, .whole_elements = 20}};
}

LinkSpeeds link_of_two() { return {.gather_bytes_per_s = 20, .exchange_bytes_per_s = 40}; }

MachineSpeeds machine_of_two() {
  MachineSpeeds speeds = instant_machine();
  speeds.link = link_of_two();
  return speeds;
}

StepModelOptions on_two() { return {.ranks = {.world = 2, .local_world = 2}}; }

std::vector<UnitPlacement> shards_on_cpu(const std::vector<UnitCost>& units) {
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : units) places.push_back(on_cpu(unit, false));
  return places;
}

TEST(StepRanks, GatherBesideWhatComputesAndReduceBehindIt) {
  const auto units = sharded_units();
  const StepPrediction step = predict_step(units, shards_on_cpu(units), machine_of_two(), on_two());
  // Gathers 0-1, 1-3 and 3-4, the head's into the embedding's slot; forward 1-2 and 3-6, head 6-9,
  // reduced 9-10. Backward of the block, which is still there, 9-17, reduced 17-19; and 17-19,
  // reduced 19-20.
  EXPECT_NEAR(step.step_s, 20, kSameTime);
  EXPECT_NEAR(step.busy(Resource::kGpu), 17, kSameTime);
  EXPECT_NEAR(step.busy(Resource::kLink), 8, kSameTime);
  EXPECT_NEAR(step.link_exposed_s, 3, kSameTime);  // 0-1, 2-3, 19-20
  EXPECT_NEAR(step.link_bytes, 80 * 2 / 2.0 + 80 * 4 / 2.0, kSameTime);
  EXPECT_NEAR(step.h2d_bytes, 40 * 2, 1e-6);  // shards only
  EXPECT_NEAR(step.d2h_bytes, 40 * 2, 1e-6);
}

// Two slots for three blocks: the first block is gathered again during the second one's pass,
// before the second one's sum can be reduced.
TEST(StepRanks, GatherForTheNextBackwardBeforeTheyReduce) {
  auto units = sharded_units();
  units.insert(units.begin() + 2, 2, units[1]);
  StepModelOptions options = on_two();
  options.prefetch_units = 1;
  const StepPrediction step = predict_step(units, shards_on_cpu(units), machine_of_two(), options);
  // Forward ends at 12, the head at 15; backward 15-23, 23-31 during the gather, 31-39, and 39-41,
  // whose sum is reduced 41-42.
  EXPECT_NEAR(step.step_s, 42, kSameTime);
}

TEST(StepRanks, MakeTheHostThatComputesWaitForEach) {
  const auto units = sharded_units();
  MachineSpeeds speeds = machine_of_two();
  speeds.bus = {};
  // Each unit once, the block again for backward; each sum once.
  const StepPrediction step = predict_step(units, shards_on_cpu(units), speeds, on_two());
  EXPECT_NEAR(step.busy(Resource::kLink), 4 + 2 + 4, kSameTime);
  EXPECT_NEAR(step.step_s, 17 + 10, kSameTime);
  EXPECT_NEAR(step.link_exposed_s, 10, kSameTime);
}

// Two hosts of two ranks: what they receive, and the time on the network of a host.
TEST(StepRanks, SendLessIn8BitsAndWithCopiesOnTheirHosts) {
  auto units = sharded_units();
  const auto places = shards_on_cpu(units);
  MachineSpeeds speeds = machine_of_two();
  speeds.bus = {};
  speeds.link.network_bytes_per_s = 10;
  StepModelOptions options{.ranks = {.world = 4, .local_world = 2}};
  const StepPrediction plain = predict_step(units, places, speeds, options);
  const double sums = plain.link_bytes - (80 + 40) * 2 * 3 / 4.0;
  EXPECT_GT(sums, 0);
  options.keeps_host_copies = true;
  const StepPrediction copies = predict_step(units, places, speeds, options);
  EXPECT_NEAR(copies.link_bytes, 80 * 2 * 3 / 4.0 + 40 * 2 / 2.0 + sums, kSameTime);
  // The block's 80 bytes for backward: half of them over the network, or from the other rank.
  EXPECT_NEAR(plain.step_s - copies.step_s, 40 / 10.0 - 40 / 20.0, kSameTime);
  for (UnitCost& unit : units) unit.sent_bytes = unit.whole_elements;
  const StepPrediction both = predict_step(units, places, speeds, options);
  EXPECT_NEAR(both.link_bytes, 80 * 3 / 4.0 + 40 / 2.0 + sums, kSameTime);
}

TEST(StepRanks, UpdateAShardOnTheGpuBeforeItIsGathered) {
  const auto units = sharded_units();
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : units) places.push_back({.gpu_elements = unit.elements});
  MachineSpeeds speeds = machine_of_two();
  speeds.gpu_adamw_elements_per_s = 10;
  // The embedding's update 0-1 and gather 1-2. The block's update overlaps its forward, both at
  // half speed, 2-4, then alone 4-5, its gather 5-7. The head's update overlaps the block's
  // forward, 7-9, its gather 9-10. Forward ends at 11, the head at 14, all backward at 24, reduced
  // at 25.
  const StepPrediction step = predict_step(units, places, speeds, on_two());
  EXPECT_NEAR(step.step_s, 25, kSameTime);
  EXPECT_NEAR(step.busy(Resource::kGpu), 1 + 3 + 4 + 3 + 10, kSameTime);
  EXPECT_EQ(step.h2d_bytes, 0);
  EXPECT_EQ(step.d2h_bytes, 0);
}

TEST(StepRanks, HideAFastLinkUnderALongStepAndWaitForASlowOne) {
  const auto units = sharded_units();
  const auto places = shards_on_cpu(units);
  const auto with_link = [&](double times) {
    MachineSpeeds speeds = machine_of_two();
    speeds.link.gather_bytes_per_s *= times;
    speeds.link.exchange_bytes_per_s *= times;
    return predict_step(units, places, speeds, on_two());
  };
  const StepPrediction fast = with_link(1000);
  EXPECT_EQ(fast.bottleneck, Resource::kGpu);
  EXPECT_NEAR(fast.step_s, 17, 0.01);
  const StepPrediction slow = with_link(0.01);
  EXPECT_EQ(slow.bottleneck, Resource::kLink);
  EXPECT_NEAR(slow.step_s, 800, 17);
  EXPECT_GT(slow.link_exposed_s, 700);
  const StepPrediction none = with_link(0);
  EXPECT_TRUE(std::isinf(none.step_s));
  EXPECT_EQ(none.bottleneck, Resource::kLink);
}

// A unit that is whole on each GPU is gathered once per step, after its update.
TEST(StepRanks, GatherOnceWhatStaysWhole) {
  const auto units = sharded_units();
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : units) places.push_back(on_cpu(unit, true));
  StepModelOptions options = on_two();
  options.waves = {.micro_batches = 6, .of_a_wave = 1};
  options.prefetch_units = 0;
  const StepPrediction whole = predict_step(units, places, machine_of_two(), options);
  EXPECT_NEAR(whole.link_bytes, 80 * 2 / 2.0 + 80 * 4 / 2.0, kSameTime);
  for (UnitPlacement& place : places) place.resident = false;
  const StepPrediction sharded = predict_step(units, places, machine_of_two(), options);
  EXPECT_GT(sharded.link_bytes, whole.link_bytes);
}

TEST(StepRanks, ReceiveWhatEachPassAndEachSumTakes) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomModel model = random_model(random, 1 + static_cast<int>(random() % 6), false);
    model.speeds.bus = {};
    model.speeds.link = {.gather_bytes_per_s = 1e6, .exchange_bytes_per_s = 1e6};
    const int world = 2 + static_cast<int>(random() % 7);
    StepModelOptions options;
    options.ranks = {.world = world, .local_world = world};
    options.waves = {.micro_batches = 1 + static_cast<std::int64_t>(random() % 8), .of_a_wave = 1};
    double all = 0;
    std::vector<UnitPlacement> places;
    for (UnitCost& unit : model.units) {
      unit.whole_elements = unit.elements * static_cast<std::uint64_t>(world);
      places.push_back(on_cpu(unit, false));
      all += static_cast<double>(unit.whole_elements);
    }
    const auto first = static_cast<double>(model.units.front().whole_elements);
    const auto last = static_cast<double>(model.units.back().whole_elements);
    // The head borrows from the embedding; backward does not fetch either.
    const double gathered = (all + first) + (all - first - last);
    const double reduced = all + first;
    const auto waves = static_cast<double>(options.waves.count());
    const double others = (world - 1.0) / world;
    const StepPrediction step = predict_step(model.units, places, model.speeds, options);
    EXPECT_NEAR(step.link_bytes, others * (2 * waves * gathered + 4 * reduced), 1e-6 * all);
  }
}

TEST(StepRanks, AreNoneWhereThereIsOne) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    RandomModel model = random_model(random, 3, true);
    std::vector<UnitPlacement> places;
    for (const UnitCost& unit : model.units) places.push_back(on_cpu(unit, random() % 2 == 0));
    const StepPrediction before = predict_step(model.units, places, model.speeds, {});
    model.speeds.link = link_of_two();
    for (UnitCost& unit : model.units) unit.reduce_s = 1;
    const StepPrediction after = predict_step(model.units, places, model.speeds, {});
    EXPECT_EQ(after.step_s, before.step_s) << "seed " << seed;
    EXPECT_EQ(after.busy_s, before.busy_s) << "seed " << seed;
    EXPECT_EQ(after.link_bytes, 0) << "seed " << seed;
    EXPECT_EQ(after.busy(Resource::kLink), 0) << "seed " << seed;
  }
}

// ---- links --------------------------------------------------------------------------------------

TEST(LinkSpeeds, BringAUnitAndASumOnceIntoEachHost) {
  const LinkSpeeds link{.gather_bytes_per_s = 100,
                        .exchange_bytes_per_s = 50,
                        .latency_s = 1,
                        .network_bytes_per_s = 10,
                        .network_latency_s = 2};
  const Topology host{.world = 4, .local_world = 4};
  EXPECT_NEAR(gather_s(link, host, 400), 3 + 1, kSameTime);
  EXPECT_NEAR(exchange_s(link, host, 400, 5), 6 + 5, kSameTime);
  const Topology two{.world = 8, .local_world = 4};
  EXPECT_NEAR(gather_s(link, two, 400), 20 + 3, kSameTime);
  EXPECT_NEAR(exchange_s(link, two, 400, 1), 6 + 1, kSameTime);  // as on one host
  EXPECT_NEAR(host_exchange_s(link, two, 400, 1), 20 + 3, kSameTime);
  EXPECT_EQ(exchanged_bytes(two, 400) + host_exchanged_bytes(two, 400), received_bytes(two, 400));
  Topology irregular = two;
  irregular.is_regular = false;
  EXPECT_NEAR(exchange_s(link, irregular, 400, 1), 80 + 3, kSameTime);
  EXPECT_EQ(host_exchange_s(link, irregular, 400, 1), 0);
  const Topology singles{.world = 2, .local_world = 1};
  EXPECT_NEAR(exchange_s(link, singles, 400, 1), 20 + 3, kSameTime);
  EXPECT_EQ(host_exchange_s(link, singles, 400, 1), 0);
  EXPECT_EQ(gather_s(link, {}, 400), 0);
  EXPECT_EQ(exchange_s(link, {}, 400, 1), 0);
}

TEST(LinkSpeeds, TakeNoLessTimeOnMoreRanks) {
  const LinkSpeeds link{.gather_bytes_per_s = 200e9,
                        .exchange_bytes_per_s = 150e9,
                        .latency_s = 20e-6,
                        .network_bytes_per_s = 50e9,
                        .network_latency_s = 10e-6};
  double gather = 0;
  double exchange = 0;
  for (int hosts = 1; hosts <= 512; hosts *= 2) {
    const Topology ranks{.world = 8 * hosts, .local_world = 8};
    EXPECT_GE(gather_s(link, ranks, 1e9), gather);
    const double both = exchange_s(link, ranks, 1e9, 8) + host_exchange_s(link, ranks, 1e9, 8);
    EXPECT_GE(both, exchange);
    gather = gather_s(link, ranks, 1e9);
    exchange = both;
  }
}

TEST(MachineSpeeds, AreSharedByTheRanksOfAHost) {
  MachineSpeeds host{.bus = duplex(50),
                     .drives = {.in_bytes_per_s = 8,
                                .out_bytes_per_s = 4,
                                .in_both_bytes_per_s = 3,
                                .out_both_bytes_per_s = 2},
                     .host_copy_bytes_per_s = 100,
                     .cpu_adamw_elements_per_s = 40,
                     .gpu_adamw_elements_per_s = 7};
  host.link.bus_together = {.in_bytes_per_s = 38, .out_bytes_per_s = 60};
  const MachineSpeeds rank = speeds_of_rank(host, {.world = 8, .local_world = 4});
  EXPECT_EQ(rank.drives.in_bytes_per_s, 2);
  EXPECT_EQ(rank.drives.out_both_bytes_per_s, 0.5);
  EXPECT_EQ(rank.host_copy_bytes_per_s, 25);
  EXPECT_EQ(rank.cpu_adamw_elements_per_s, 10);
  EXPECT_EQ(rank.gpu_adamw_elements_per_s, 7);
  EXPECT_EQ(rank.bus.in_bytes_per_s, 38);
  EXPECT_EQ(rank.bus.out_bytes_per_s, 50);
  EXPECT_EQ(rank.bus.in_both_bytes_per_s, 50);
  EXPECT_EQ(speeds_of_rank(host, {}).host_copy_bytes_per_s, 100);
}

}  // namespace
}  // namespace sluice::offload
