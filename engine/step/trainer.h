// Trainer: one optimizer step of a GPT whose parameters and optimizer state come and go, in the
// four phases of ZeRO-3 with offload ("ZeRO-Infinity", SC 2021), in the order of the step's program
// (offload/step_program.h). That order is vertical: all micro-batches of a wave go through a unit
// before the next unit is fetched, so parameters cross the bus once a pass however large the wave
// is.
//
//   Forward   unit by unit: wait for its deferred update, fetch, run the micro-batches, release.
//             What a unit was given is kept (its input, the activation checkpoint); the head makes
//             loss and first gradient.
//   Backward  in reverse: fetch again, recompute or use what was saved, accumulate in fp32, hand
//             the gradient to the sink. Optimizer state starts to be read.
//   Waves     after the first, forward and backward once more for the next micro-batches: a unit's
//             sum of gradients is kept from wave to wave, and added to in the order of
//             micro-batches.
//   Norm      the global norm, the clip factor, and whether the step overflowed.
//   Update    AdamW, unit by unit in forward order; under the next forward when `overlap_update`.
//
// A step whose gradient is not finite changes no parameter and no moment. Where it is skipped (by
// the dynamic loss scale of fp16, or by run.non_finite_step) its batch is used up: global_step and
// the loss scale advance, applied_step (Adam's t and the schedule's) does not.
//
// Exact: no staleness, clipping kept; where anything lies, and when it is updated, does not change
//        a bit.
// Threads: one.
// Errors:  as c10::Error or TrainError; both end the run: resume from a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/phase_clock.h"
#include "engine/model/model.h"
#include "engine/observe/trace_log.h"
#include "engine/step/evaluation_pass.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/pass_recorder.h"
#include "engine/step/step_batch.h"
#include "engine/step/train_error.h"
#include "engine/step/unit_binding.h"
#include "engine/step/unit_input_store.h"
#include "engine/step/unit_parameters.h"
#include "engine/step/update_rules.h"
#include "offload/state/optimizer_offloader.h"
#include "offload/step_program.h"

namespace sluice::engine {

struct StepTimes {
  std::int64_t forward_ns = 0;  // without waiting for updates
  std::int64_t backward_ns = 0;
  std::int64_t update_ns = 0;          // of the last update that is done, overlapped or not
  std::int64_t update_exposed_ns = 0;  // of updates: how long this step waited
  // Of forward and backward, by phase; where they were measured (Trainer::measure_phases()).
  std::optional<std::array<std::int64_t, kPassPhases>> passes = {};
};

struct StepOutcome {
  double loss = 0;  // mean over the step's tokens
  double grad_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;  // that was used
  bool skipped = false;
  std::string warning;  // of a step that run.non_finite_step skipped: a sentence
  StepTimes times;
};

class Trainer {
 public:
  struct Options {
    UpdateRules rules;
    std::vector<bool> keeps_activations;  // by unit, between forward and backward; empty: none
    offload::UnitResidency residency;
    offload::Waves waves;
    bool overlap_update = true;
    bool deterministic = false;
    std::uint64_t run_seed = 0;
    int prefetch_units = 1;
    std::optional<UnitBinding::Widths> hash_widths;  // run.hash_units
    RankLink ranks;
    offload::SumOrder order;  // of the micro-batches
  };
  // All must outlive it.
  struct Parts {
    const Model* model = nullptr;
    UnitParameters* parameters = nullptr;
    GradientSink* gradients = nullptr;
    UnitInputStore* unit_inputs = nullptr;
    offload::ParamOffloader* params = nullptr;
    offload::OptimizerOffloader* optimizer = nullptr;
    UnitBinding* binding = nullptr;
    PhaseClock* clock = nullptr;
    TraceLog* trace = nullptr;
  };

  Trainer(const Options& options, const Parts& parts, const TrainState& state);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  StepOutcome step(const StepBatch& batch);
  // evaluate_batch(): without dropout; drains updates first.
  std::vector<LossSum> evaluate(const StepBatch& batch);
  // Of the steps that follow: StepTimes::passes, and pass_spans() of the last one.
  void measure_phases(bool wanted) { measures_phases_ = wanted; }
  const std::vector<PassSpan>& pass_spans() const { return recorder_.spans(); }
  void phases_heard_by(PassRecorder::Hear hear) { recorder_.heard_by(std::move(hear)); }
  // Every update applied, everything on its way written.
  void drain();
  // Of the last applied step; waits for its update. Empty without options.hash_widths. With several
  // ranks those that the first one has gathered last.
  const std::vector<UnitHashes>& unit_hashes();
  // With several ranks: after an applied step, for all of them to call.
  void gather_unit_hashes();

  const TrainState& state() const { return state_; }
  // Continues from there; between steps.
  void set_state(const TrainState& state) { state_ = state; }
  void count_samples(std::uint64_t samples) { state_.samples_drawn += samples; }

 private:
  PassContext context(int unit, std::size_t micro_batch) const;
  std::int64_t wait_for_update(int unit);
  bool keeps_activations(int unit) const;
  at::Tensor run_unit(int unit, std::size_t micro_batch, const UnitViews& views,
                      const at::Tensor& input);
  GradientTotals passes();
  void begin_wave(int wave);
  void compute(std::size_t position);
  void forward(int unit, const UnitViews& views);
  void head(int unit, const UnitViews& views);
  void backward(int unit, const UnitViews& views);
  void expect_units() const;
  void measure_passes();
  void trace_passes();
  void record(PassPhase phase, int unit, std::int64_t micro_batch = -1);
  void prefetch_behind(std::size_t position);
  void prefetch_sums(std::size_t position);
  std::int64_t number_in_step(std::size_t micro_batch) const;
  double counted_targets(const StepBatch& batch) const;
  double mean_loss(const StepBatch& batch) const;
  std::string suspects(const StepBatch& batch) const;
  void handle_overflow(const StepBatch& batch, const GradientTotals& totals, StepOutcome& outcome);
  void update(const GradientTotals& totals, StepOutcome& outcome);

  const Options options_;
  const Parts parts_;
  FetchedUnits fetched_;
  const offload::StepProgram program_;
  TrainState state_;

  // Of the step in progress.
  std::size_t first_ = 0;                       // micro-batch of the wave
  std::vector<std::vector<Saved>> saved_;       // by unit and micro-batch of the wave
  std::vector<at::Tensor> flow_;                // what passes from unit to unit, likewise
  std::vector<at::Tensor> losses_;              // by micro-batch of the step
  std::vector<offload::AdamwScalars> scalars_;  // of its update, by StatePlan::settings
  const StepBatch* batch_ = nullptr;            // of the step that runs
  StepTimes times_;
  double grad_scale_ = 1;

  bool measures_phases_ = false;
  int wave_ = 0;  // of the operation in progress
  PassRecorder recorder_;
};

}  // namespace sluice::engine
