// Steps that were computed by hand, to the second.
#include "offload/planner/step_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "offload/planner/step_graph.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

constexpr double kClose = 1e-9;

// Embedding, one block, head: 10, 20 and 10 elements.
std::vector<UnitCost> three_units() {
  return {{.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 2},
          {.name = "h0",
           .elements = 20,
           .forward_s = 3,
           .recompute_s = 2,
           .backward_s = 6,
           .kept_bytes = 1000},
          {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 2, .lenders = {0}}};
}

// 2 seconds for the 8-bit part of the embedding, and 1 for the block's.
std::vector<UnitCost> packed_units() {
  std::vector<UnitCost> units = three_units();
  units[0].frozen_elements = 10;
  units[0].unpack_s = 2;
  units[1].frozen_elements = 20;
  units[1].unpack_s = 1;
  units[2].frozen_elements = 10;
  return units;
}

// Two blocks that recompute nothing.
std::vector<UnitCost> four_units() {
  const UnitCost block{.name = "h0", .elements = 20, .forward_s = 3, .backward_s = 6};
  std::vector<UnitCost> units = {three_units()[0], block, block, three_units()[2]};
  units[2].name = "h1";
  return units;
}

template <typename Place>
std::vector<UnitPlacement> each(const std::vector<UnitCost>& units, const Place& place) {
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : units) places.push_back(place(unit));
  return places;
}

std::vector<UnitPlacement> all_resident_on_cpu(const std::vector<UnitCost>& units) {
  return each(units, [](const UnitCost& unit) { return on_cpu(unit, true); });
}

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

// The head alone, with records of 10 elements that take a second each to read, compute and write.
struct Records {
  std::vector<UnitCost> units;
  MachineSpeeds speeds = instant_machine();
  StepModelOptions options{.record_elements = 10, .swap_buffer_elements = 20};

  explicit Records(std::uint64_t elements)
      : units{{.name = "head", .elements = elements, .forward_s = 1, .backward_s = 1}} {
    speeds.bus = {};
    speeds.drives = duplex(100);
    speeds.cpu_adamw_elements_per_s = 10;
  }
  StepPrediction predict() const {
    return predict_step(units, {on_nvme(units[0], true)}, speeds, options);
  }
};

TEST(StepModel, ReadsComputesAndWritesRecordsAtOnce) {
  // Read 0-1, 1-2, computed 1-2, 2-3, the head 3-5; written meanwhile.
  const StepPrediction prediction = Records(20).predict();
  EXPECT_NEAR(prediction.step_s, 5, kClose);
  EXPECT_NEAR(prediction.update_exposed_s, 3, kClose);
  EXPECT_EQ(prediction.nvme_read_bytes, 200);
  EXPECT_EQ(prediction.nvme_write_bytes, 200);
  EXPECT_NEAR(prediction.busy(Resource::kDriveRead), 2, kClose);
  EXPECT_NEAR(prediction.busy(Resource::kDriveWrite), 2, kClose);
}

TEST(StepModel, ReadsARecordWhenItsBufferIsWritten) {
  // Two buffers: the third record is read 3-4, after the first was written 2-3; the fourth 4-5,
  // computed 5-6, then the head.
  Records four(40);
  EXPECT_NEAR(four.predict().step_s, 8, kClose);
  four.options.swap_buffer_elements = 40;
  EXPECT_NEAR(four.predict().step_s, 7, kClose);
}

TEST(StepModel, SharesTheDrivesBetweenReadsAndWrites) {
  // The third is read while the second is written, both until 5; the fourth is read 5-6.
  Records four(40);
  four.speeds.drives.in_both_bytes_per_s = four.speeds.drives.out_both_bytes_per_s = 50;
  EXPECT_NEAR(four.predict().step_s, 9, kClose);
}

TEST(StepModel, ReadsAheadUnderBackward) {
  const std::vector<UnitCost> units = {
      {.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 5},
      {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 1}};
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {};
  speeds.drives = duplex(100);
  speeds.cpu_adamw_elements_per_s = 10;
  const std::vector<UnitPlacement> places = {on_nvme(units[0], true), on_cpu(units[1], true)};
  // In the long run the record is already there: updated 0-1 and 1-2, forward 1-2, head 2-4,
  // backward 4-9, with the next read 4-5.
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 9, kClose);
}

TEST(StepModel, ReadsParametersOnDrivesForUpdateAndBackward) {
  const auto units = four_units();
  MachineSpeeds speeds = instant_machine();
  auto places = all_resident_on_cpu(units);
  for (const std::size_t block : {1, 2}) {
    places[block].resident = false;
    places[block].params_on_nvme = true;
  }
  StepModelOptions options{.prefetch_units = 0, .param_cache_units = 1};
  // The buffer holds h0 from backward to the next update; h1 for forward and h0 for backward are
  // read.
  const StepPrediction small = predict_step(units, places, speeds, options);
  EXPECT_EQ(small.nvme_read_bytes, 80);
  EXPECT_EQ(small.nvme_write_bytes, 80);
  EXPECT_EQ(small.h2d_bytes, 160);
  options.param_cache_units = 2;
  EXPECT_EQ(predict_step(units, places, speeds, options).nvme_read_bytes, 0);
  // Without overlap, forward begins when all units have been updated: h0 is read once more.
  options = {.overlap_update = false, .prefetch_units = 0, .param_cache_units = 1};
  EXPECT_EQ(predict_step(units, places, speeds, options).nvme_read_bytes, 160);
}

// A ring of two places for the inputs of three blocks, of which the first goes to the host.
TEST(StepModel, SendsInputsAwayAndBringsThemBack) {
  const UnitCost block{
      .name = "h", .elements = 20, .forward_s = 1, .backward_s = 2, .unit_input_bytes = 10};
  const std::vector<UnitCost> units = {
      {.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 1},
      block,
      block,
      block,
      {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 1}};
  auto places = each(units, on_gpu);
  places[1].activations = ActivationPlace::kOffload;
  MachineSpeeds speeds = instant_machine();
  speeds.bus = duplex(10);
  // Out 1-2, back 8-9, when the third block's backward ends; needed at 10.
  const StepPrediction hidden = predict_step(units, places, speeds, {});
  EXPECT_NEAR(hidden.step_s, 13, kClose);
  EXPECT_EQ(hidden.h2d_bytes, 10);
  EXPECT_EQ(hidden.d2h_bytes, 10);
  // Out 1-6, so the third block waits for the place; back 11-16, and the first block waits for
  // that.
  speeds.bus = duplex(2);
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 19, kClose);
}

// The same two places; the first block's input continues to a drive, through buffers for one unit.
TEST(StepModel, SendsInputsOnToTheDrivesAndBringsThemBack) {
  const UnitCost block{
      .name = "h", .elements = 20, .forward_s = 1, .backward_s = 2, .unit_input_bytes = 10};
  const std::vector<UnitCost> units = {
      {.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 1},
      block,
      block,
      block,
      {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 1}};
  auto places = each(units, on_gpu);
  places[1].activations = ActivationPlace::kSpill;
  MachineSpeeds speeds = instant_machine();
  speeds.bus = duplex(10);
  speeds.drives = duplex(5);
  // Out 1-2, written 2-4, read 4-6, back 8-9, needed at 10: as if it had waited in RAM.
  const StepPrediction hidden = predict_step(units, places, speeds, {});
  EXPECT_NEAR(hidden.step_s, 13, kClose);
  EXPECT_EQ(hidden.h2d_bytes, 10);
  EXPECT_EQ(hidden.d2h_bytes, 10);
  EXPECT_EQ(hidden.nvme_read_bytes, 10);
  EXPECT_EQ(hidden.nvme_write_bytes, 10);
  // Written 2-12, read 12-22, back 22-23; then backward of two units.
  speeds.drives = duplex(1);
  EXPECT_NEAR(predict_step(units, places, speeds, {}).step_s, 26, kClose);
  // A second input waits until the buffer is free: out 12-13, written 13-23, read 23-33 and back;
  // the other after that.
  places[2].activations = ActivationPlace::kSpill;
  const double one_buffer = predict_step(units, places, speeds, {}).step_s;
  EXPECT_GT(one_buffer, 46);
  EXPECT_LT(predict_step(units, places, speeds, {.spill_units = 2}).step_s, one_buffer);
  // If the host computes there is no bus and no ring.
  speeds.bus = {};
  places = each(units, [](const UnitCost& unit) { return on_cpu(unit, true); });
  places[1].activations = ActivationPlace::kSpill;
  speeds.drives = duplex(5);
  const StepPrediction on_host = predict_step(units, places, speeds, {});
  EXPECT_EQ(on_host.nvme_read_bytes, 10);
  EXPECT_EQ(on_host.nvme_write_bytes, 10);
  EXPECT_EQ(on_host.h2d_bytes, 0);
}

TEST(StepModel, WritesGradientsAndReadsThemForNextWavesAndTheUpdate) {
  const auto units = four_units();
  const auto places = each(units, [](const UnitCost& unit) { return on_cpu(unit, false); });
  MachineSpeeds speeds = instant_machine();
  speeds.bus = {};
  speeds.drives = {.in_bytes_per_s = 40,
                   .out_bytes_per_s = 80,
                   .in_both_bytes_per_s = 40,
                   .out_both_bytes_per_s = 80};
  StepModelOptions options{.overlap_update = false, .gradient_buffers = 3};
  // Forward 1 + 3 + 3, head 3, backward 6 + 6 + 2, during which everything is written. At 4 bytes
  // each the last three are still in their buffers for their update. The head's are read in 1 s,
  // into the embedding's buffer, which takes 0.5 s to be written.
  const StepPrediction one = predict_step(units, places, speeds, options);
  EXPECT_NEAR(one.step_s, 24 + 0.5 + 1, kClose);
  EXPECT_NEAR(one.nvme_read_bytes, 4 * 10, kClose);
  EXPECT_NEAR(one.nvme_write_bytes, 4 * 60, kClose);
  // Each of two waves has half of the work. The second one's head waits for the sum that it adds
  // to, which is read as soon as a buffer is free.
  options.waves = {.micro_batches = 2, .of_a_wave = 1};
  const StepPrediction two = predict_step(units, places, speeds, options);
  EXPECT_NEAR(two.step_s, 24 + 0.5 + 1, kClose);
  EXPECT_NEAR(two.nvme_read_bytes, 4 * (60 + 10), kClose);
  EXPECT_NEAR(two.nvme_write_bytes, 2 * 4 * 60, kClose);
  // One buffer: each unit but the first waits until the previous one is written, in 0.5, 1 and 1 s.
  // All but the embedding's are read for the update, one after another: 2, 2 and 1 s, once the
  // embedding's are written.
  options.waves = {};
  options.gradient_buffers = 1;
  EXPECT_NEAR(predict_step(units, places, speeds, options).step_s, 24 + 2.5 + 0.5 + 5, kClose);
  options.gradient_buffers = 0;
  EXPECT_NEAR(predict_step(units, places, speeds, options).step_s, 24, kClose);
}

TEST(StepModel, WritesGradientsOfAGpuToTheDrives) {
  const auto units = four_units();
  const auto places = each(units, [](const UnitCost& unit) { return on_cpu(unit, false); });
  MachineSpeeds speeds = instant_machine();
  speeds.drives = {.in_bytes_per_s = 20,
                   .out_bytes_per_s = 4,
                   .in_both_bytes_per_s = 20,
                   .out_both_bytes_per_s = 4};
  StepModelOptions options{.overlap_update = false, .gradient_buffers = 3};
  // In 16 bits 120 bytes, which take 30 s; 24 s are computed. The head's are read for its update.
  const StepPrediction one = predict_step(units, places, speeds, options);
  EXPECT_NEAR(one.nvme_write_bytes, 2 * 60, kClose);
  EXPECT_NEAR(one.nvme_read_bytes, 2 * 10, kClose);
  EXPECT_GE(one.step_s, 30 - kClose);
  // Sums of two waves: each record has room for 4 bytes an element.
  options.waves = {.micro_batches = 2, .of_a_wave = 1};
  options.sums = SumOrder({.micro_batches = 2});
  options.kept_sums = 1;
  const StepPrediction two = predict_step(units, places, speeds, options);
  EXPECT_NEAR(two.nvme_write_bytes, 2 * 4 * 60, kClose);
  EXPECT_NEAR(two.nvme_read_bytes, 4 * (60 + 10), kClose);
  // The GPU's own gradients stay there.
  const auto on_the_gpu = each(units, [](const UnitCost& unit) { return on_gpu(unit); });
  const StepPrediction none = predict_step(units, on_the_gpu, speeds, options);
  EXPECT_EQ(none.nvme_write_bytes, 0);
  EXPECT_EQ(none.nvme_read_bytes, 0);
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
