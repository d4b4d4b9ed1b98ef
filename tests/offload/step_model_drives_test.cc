// Steps with state, parameters, inputs or gradients on drives, computed by hand, to the second.
#include <gtest/gtest.h>

#include "offload/planner/step_model.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

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

}  // namespace
}  // namespace sluice::offload
