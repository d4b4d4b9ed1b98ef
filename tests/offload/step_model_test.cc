// Steps that were computed by hand, to the second.
#include "offload/planner/step_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "offload/planner/step_graph.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

TEST(StepModel, IsTheGpusWorkWhenAllIsOnTheGpu) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.gpu_adamw_elements_per_s = 10;
  auto places = each(units, on_gpu);
  // AdamW 4, forward 1 + 3, head 3, backward (2 + 6) + 2.
  const StepPrediction recomputed = predict_step(units, places, speeds, {});
  EXPECT_NEAR(recomputed.step_s, 21, kClose);
  EXPECT_NEAR(recomputed.forward_s, 11, kClose);
  EXPECT_NEAR(recomputed.busy(Resource::kGpu), 21, kClose);
  EXPECT_EQ(recomputed.bottleneck, Resource::kGpu);
  EXPECT_EQ(recomputed.h2d_bytes, 0);
  EXPECT_EQ(recomputed.d2h_bytes, 0);
  EXPECT_EQ(recomputed.update_exposed_s, 0);
  places[1].activations = ActivationPlace::kKeep;
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 19, kClose);
}

// Sums of gradients go to the host after each wave but the last, and return; updates happen once.
TEST(StepModel, PassesAgainForEachWave) {
  const auto units = three_units();
  const MachineSpeeds speeds = instant_machine();
  StepModelOptions in_two;
  in_two.waves = {.micro_batches = 4, .of_a_wave = 2};
  const auto resident = all_resident_on_cpu(units);
  const StepPrediction one = predict_step(units, resident, speeds, {});
  const StepPrediction two = predict_step(units, resident, speeds, in_two);
  EXPECT_NEAR(two.busy(Resource::kGpu), one.busy(Resource::kGpu), kClose);
  EXPECT_NEAR(two.step_s, one.step_s, kClose);
  EXPECT_NEAR(two.forward_s, one.forward_s, kClose);
  EXPECT_EQ(two.h2d_bytes, one.h2d_bytes + 4 * 40);
  EXPECT_EQ(two.d2h_bytes, one.d2h_bytes + 4 * 40);
  // State that the GPU updates stays there with its sum.
  EXPECT_EQ(predict_step(units, each(units, on_gpu), speeds, in_two).d2h_bytes, 0);
  // The last of three waves is smaller.
  in_two.waves = {.micro_batches = 5, .of_a_wave = 2};
  const StepPrediction uneven = predict_step(units, resident, speeds, in_two);
  EXPECT_NEAR(uneven.busy(Resource::kGpu), one.busy(Resource::kGpu), kClose);
  EXPECT_EQ(uneven.d2h_bytes, one.d2h_bytes + 2 * 4 * 40);
}

// One wave stands for all waves between the first and the last, so that predicting a million waves
// takes no longer.
TEST(StepModel, TakesTheTimeOfAllWavesFromFourOfThem) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = 20,
                .out_bytes_per_s = 10,
                .in_both_bytes_per_s = 15,
                .out_both_bytes_per_s = 8};
  speeds.cpu_adamw_elements_per_s = 10;
  const auto streamed = each(units, [](const UnitCost& unit) { return on_cpu(unit, false); });
  StepModelOptions options;
  options.waves = {.micro_batches = 23, .of_a_wave = 2};
  options.sums = SumOrder({.micro_batches = 23});
  const StepPrediction predicted = predict_step(units, streamed, speeds, options);
  StepGraph all(units, streamed, speeds, options, {.all_waves = true});
  const StepGraph::Marks& step = all.reported();
  all.schedule().run(ResourceRates(speeds, options.bytes.cpu_adamw_dram), step.first, step.last);
  EXPECT_NEAR(predicted.step_s, all.end_s(step) - all.begin_s(step), 0.01 * predicted.step_s);
  EXPECT_NEAR(predicted.forward_s, all.forward_s(step), 0.02 * predicted.forward_s);
  for (int r = 0; r < kResources; ++r) {
    const auto i = static_cast<std::size_t>(r);
    EXPECT_NEAR(predicted.busy_s[i], all.schedule().busy_s()[i], 0.01 * predicted.step_s) << r;
  }
  EXPECT_NEAR(predicted.h2d_bytes, all.work()[static_cast<std::size_t>(Resource::kHostToGpu)],
              kClose);
  EXPECT_NEAR(predicted.d2h_bytes, all.work()[static_cast<std::size_t>(Resource::kGpuToHost)],
              kClose);
  options.waves = {.micro_batches = 1'000'000, .of_a_wave = 1};
  options.sums = SumOrder({.micro_batches = 1'000'000});
  EXPECT_GT(predict_step(units, streamed, speeds, options).h2d_bytes, 1e6 * 40);
}

TEST(StepModel, UnpacksEachTimeWhatPassesThrough) {
  const auto units = packed_units();
  auto places = each(units, [](const UnitCost& unit) { return on_cpu(unit, false); });
  // Forward 2 + 1 and 1 + 3, head 2 + 3 including the embedding's part, backward 1 + 2 + 6 and 2.
  EXPECT_NEAR(predict_step(units, places, instant_machine(), {}).step_s, 23, kClose);
  places[1].resident = true;
  EXPECT_NEAR(predict_step(units, places, instant_machine(), {}).step_s, 21, kClose);
  places[0].resident = true;
  EXPECT_NEAR(predict_step(units, places, instant_machine(), {}).step_s, 17, kClose);
}

TEST(StepModel, HidesUpdatesUnderForwardUnitByUnit) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {};
  speeds.cpu_adamw_elements_per_s = 10;
  const auto places = all_resident_on_cpu(units);
  // Updated at 1, 3, 4: forward 1-2, 3-6, head 6-9, backward to 17 and 19.
  const StepPrediction overlapped = predict_step(units, places, speeds, {});
  EXPECT_NEAR(overlapped.step_s, 19, kClose);
  EXPECT_NEAR(overlapped.update_exposed_s, 2, kClose);
  EXPECT_NEAR(overlapped.busy(Resource::kCpu), 4, kClose);
  EXPECT_EQ(overlapped.h2d_bytes + overlapped.d2h_bytes, 0) << "a machine without a bus";
  const StepPrediction before = predict_step(units, places, speeds, {.overlap_update = false});
  EXPECT_NEAR(before.step_s, 21, kClose);
  EXPECT_NEAR(before.update_exposed_s, 4, kClose);
}

TEST(StepModel, WaitsForTheCpuWhereItIsSlowest) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.cpu_adamw_elements_per_s = 1;
  // Updated at 10, 30, 40; then the head 3, backward 8 + 2.
  const StepPrediction prediction = predict_step(units, all_resident_on_cpu(units), speeds, {});
  EXPECT_NEAR(prediction.step_s, 53, kClose);
  EXPECT_EQ(prediction.bottleneck, Resource::kCpu);
}

TEST(StepModel, RefreshesResidentUnitsOnceAStep) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = 20, .out_bytes_per_s = 40};
  // Parameters 0-1, 1-3, 3-4; forward 1-2, 3-6, head 6-9; backward to 17 and 19; the last gradient
  // leaves in half a second.
  const StepPrediction prediction = predict_step(units, all_resident_on_cpu(units), speeds, {});
  EXPECT_NEAR(prediction.step_s, 19.5, kClose);
  EXPECT_EQ(prediction.h2d_bytes, 80);
  EXPECT_EQ(prediction.d2h_bytes, 80);
}

TEST(StepModel, RefreshesOnlyWhatTheHostHasUpdated) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = 20, .out_bytes_per_s = 40};
  auto places = all_resident_on_cpu(units);
  places[1] = {.gpu_elements = 15, .cpu_elements = 5, .resident = true};
  const StepPrediction prediction = predict_step(units, places, speeds, {});
  // Parameters 0-1, 1-1.5: the block begins when the embedding is done.
  EXPECT_NEAR(prediction.step_s, 18.5, kClose);
  EXPECT_EQ(prediction.h2d_bytes, 50);
  EXPECT_EQ(prediction.d2h_bytes, 50);
}

TEST(StepModel, FetchesStreamedUnitsAgainUnlessTheyStayInASlot) {
  const auto units = four_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = 20, .out_bytes_per_s = 40};
  auto places = all_resident_on_cpu(units);
  places[1].resident = places[2].resident = false;
  // One slot: h0 1-3, computed 3-6, h1 6-8, computed 8-11, head to 14, backward of h1 to 20, h0
  // again 20-22, to 28, embedding to 30, its gradient.
  const StepPrediction one = predict_step(units, places, speeds, {.prefetch_units = 0});
  EXPECT_NEAR(one.step_s, 30.5, kClose);
  EXPECT_EQ(one.h2d_bytes, 160);
  // Two slots: both stay.
  const StepPrediction two = predict_step(units, places, speeds, {.prefetch_units = 1});
  EXPECT_NEAR(two.step_s, 26.5, kClose);
  EXPECT_EQ(two.h2d_bytes, 120);
}

TEST(StepModel, FetchesAStreamedEmbeddingAgainForTheHead) {
  auto units = four_units();
  const MachineSpeeds speeds = instant_machine();
  auto places = all_resident_on_cpu(units);
  for (UnitPlacement& place : places) place.resident = false;
  // Two slots. Forward fetches all four in turn. The head replaces a block and fetches the
  // embedding again. Backward fetches both blocks; the embedding's backward needs no parameters.
  const StepPrediction prediction = predict_step(units, places, speeds, {.prefetch_units = 1});
  EXPECT_EQ(prediction.h2d_bytes, 2 * (10 + 20 + 20 + 10 + 10 + 20 + 20));
  // A head with its own output matrix does not fetch the embedding, so a block's slot is kept.
  units.back().lenders.clear();
  EXPECT_EQ(predict_step(units, places, speeds, {.prefetch_units = 1}).h2d_bytes,
            2 * (10 + 20 + 20 + 10 + 20));
}

TEST(StepModel, WaitsForTheLastGradient) {
  const auto units = four_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = kAtOnce, .out_bytes_per_s = 4};
  // Forward to 7, head to 10; gradients of the head 10-15, h1 16-26, h0 26-36, embedding 36-41.
  const StepPrediction prediction = predict_step(units, all_resident_on_cpu(units), speeds, {});
  EXPECT_NEAR(prediction.step_s, 41, kClose);
  EXPECT_EQ(prediction.bottleneck, Resource::kGpuToHost);
}

TEST(StepModel, HoldsBackwardBackWhereGradientsHaveNoPlace) {
  auto units = four_units();
  units[0].backward_s = 20;
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = kAtOnce, .out_bytes_per_s = 4};
  // Like the test above, but with one place h0's gradient is cast when h1's has left at 26, so the
  // embedding's backward is 26-46 rather than 22-42.
  const auto places = all_resident_on_cpu(units);
  EXPECT_NEAR(predict_step(units, places, speeds, {.grad_stages = 2}).step_s, 47, kClose);
  EXPECT_NEAR(predict_step(units, places, speeds, {.grad_stages = 1}).step_s, 51, kClose);
}

TEST(StepModel, SharesDramBetweenAdamwAndTheBus) {
  const std::vector<UnitCost> units = {
      {.name = "embedding", .elements = 10, .forward_s = 0.1, .backward_s = 0.5},
      {.name = "head", .elements = 10, .forward_s = 0.05, .backward_s = 0.05}};
  MachineSpeeds speeds = instant_machine();
  speeds.bus = duplex(100);
  speeds.cpu_adamw_elements_per_s = 10;
  const auto places = all_resident_on_cpu(units);
  // Updated at 1; copied 1-1.2. Updated at 2, copied to 2.2, head to 2.3, backward to 2.8, out.
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 3.0, kClose);
  // AdamW alone uses the full bandwidth. With the bus, each has half: copied 1-1.4, updated at 2.2.
  speeds.host_copy_bytes_per_s = 100;
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 3.2, kClose);
}

TEST(StepModel, TakesForEverWithoutAResourceThatIsNeeded) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.drives = {};
  auto places = all_resident_on_cpu(units);
  EXPECT_TRUE(std::isfinite(predict_step(units, places, speeds, {}).step_s));
  places[1] = on_nvme(units[1], true);
  EXPECT_TRUE(std::isinf(predict_step(units, places, speeds, {}).step_s));
  speeds.gpu_adamw_elements_per_s = 0;
  EXPECT_TRUE(std::isinf(predict_step(units, each(units, on_gpu), speeds, {}).step_s));
}

TEST(StepModel, DrawsTheStepOnlyWhenAsked) {
  const auto units = three_units();
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {.in_bytes_per_s = 20, .out_bytes_per_s = 40};
  speeds.cpu_adamw_elements_per_s = 10;
  const auto places = all_resident_on_cpu(units);
  EXPECT_TRUE(predict_step(units, places, speeds, {}).spans.empty());
  const StepPrediction drawn = predict_step(units, places, speeds, {}, true);
  std::array<double, kResources> drawn_s{};
  for (const StepSpan& span : drawn.spans) {
    EXPECT_GE(span.begin_s, 0);
    EXPECT_LE(span.end_s, drawn.step_s + kClose);
    drawn_s[static_cast<std::size_t>(span.resource)] += span.end_s - span.begin_s;
  }
  for (std::size_t r = 0; r < kResources; ++r) EXPECT_NEAR(drawn_s[r], drawn.busy_s[r], kClose);
  const auto forward = std::find_if(drawn.spans.begin(), drawn.spans.end(),
                                    [](const StepSpan& it) { return it.what == "forward h0"; });
  ASSERT_NE(forward, drawn.spans.end());
  // Updated at 3, copied to 5.
  EXPECT_NEAR(forward->begin_s, 5, kClose);
  EXPECT_NEAR(forward->end_s, 8, kClose);
}

}  // namespace
}  // namespace sluice::offload
