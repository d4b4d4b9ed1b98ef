// Trainer: one optimizer step of a model whose parameters and optimizer state are offloaded, in the
// four phases of ZeRO-3 with offload ("ZeRO-Infinity", SC 2021). StepEngine carries out the step's
// program (offload/step_program.h); the passes are computed here. The order is vertical: all
// micro-batches of a wave go through a unit before the next unit is fetched. Parameters therefore
// cross the bus once per pass, however large the wave is.
//
//   Forward   unit by unit: wait for its deferred update, fetch, run the micro-batches, release.
//             A unit's input is kept (the activation checkpoint); the head computes the loss and
//             the first gradient.
//   Backward  in reverse: fetch again, recompute or use what was saved, accumulate in fp32, hand
//             the gradient to the sink. Optimizer state starts to be read.
//   Waves     forward and backward once more for each further wave of micro-batches. A unit's sum
//             of gradients is kept from wave to wave, and added to in the order of micro-batches.
//   Norm      the global norm, the clip factor, and whether the step overflowed.
//   Update    AdamW, unit by unit in forward order; during the next forward if `overlap_update`.
//
// Exact:   no staleness, clipping kept; the placement of state and the time of its update do not
//          change a bit.
// Threads: one.
// Errors:  thrown: c10::Error or TrainError; both end the run: resume from a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/model.h"
#include "engine/runtime/evaluation_pass.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/step_engine.h"
#include "engine/runtime/step_update.h"
#include "engine/step/pass_recorder.h"
#include "engine/step/step_batch.h"
#include "engine/step/train_error.h"
#include "engine/step/unit_binding.h"
#include "engine/step/update_rules.h"
#include "offload/step_program.h"

namespace sluice::engine {

class Trainer final : private Passes {
 public:
  struct Options {
    UpdateRules rules;
    bool overlap_update = true;
    bool deterministic = false;
    std::uint64_t run_seed = 0;
    std::optional<UnitBinding::Widths> hash_widths;  // run.hash_units
  };
  // Parts and model must outlive it.
  Trainer(Resources& parts, const Model& model, const Options& options, const TrainState& state);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  StepOutcome step(const StepBatch& batch);
  // Drains updates, then calls evaluate_batch(), without dropout.
  std::vector<LossSum> evaluate(const StepBatch& batch);
  // Makes the following steps measure StepTimes::passes. pass_spans() are those of the last step.
  void measure_phases(bool wanted) { measures_phases_ = wanted; }
  const std::vector<PassSpan>& pass_spans() const { return recorder_.spans(); }
  void phases_heard_by(PassRecorder::Hear hear) { recorder_.heard_by(std::move(hear)); }
  // Waits until every update is applied and every write has ended.
  void drain();
  // Hashes of the last applied step; waits for its update. Empty without options.hash_widths. With
  // several ranks, valid on the first one, as of the last gather_unit_hashes().
  const std::vector<UnitHashes>& unit_hashes();
  // Only with several ranks: collective, after an applied step.
  void gather_unit_hashes();

  const TrainState& state() const { return update_.state(); }
  // Continues from `state`; call it between steps.
  void set_state(const TrainState& state) { update_.set_state(state); }
  void count_samples(std::uint64_t samples) { update_.count_samples(samples); }

 private:
  // ---- Passes
  void begin_wave(int wave) override;
  void forward(int unit, const UnitViews& views) override;
  void head(int unit, const UnitViews& views) override;
  void backward(int unit, const UnitViews& views) override;
  void end_waves() override;
  void begin_phase(PassPhase phase, int unit) override { record(phase, unit); }
  void end_phase() override { recorder_.end(); }

  PassContext context(int unit, std::size_t micro_batch) const;
  bool keeps_activations(int unit) const;
  const offload::Waves& waves() const { return parts_.plan().waves; }
  void measure_passes();
  void trace_passes();
  void record(PassPhase phase, int unit, std::int64_t micro_batch = -1);
  double counted_targets(const StepBatch& batch) const;
  double mean_loss(const StepBatch& batch) const;

  Resources& parts_;
  const Model& model_;
  const Options options_;
  const offload::StepProgram program_;
  StepEngine engine_;
  StepUpdate update_;

  // The step in progress.
  std::size_t first_ = 0;                  // the wave's first micro-batch
  std::vector<std::vector<Saved>> saved_;  // by unit and micro-batch of the wave
  std::vector<at::Tensor> flow_;           // between units, by micro-batch of the wave
  std::vector<at::Tensor> losses_;         // by micro-batch of the step
  const StepBatch* batch_ = nullptr;       // the current step's
  StepTimes times_;
  double grad_scale_ = 1;

  bool measures_phases_ = false;
  int wave_ = 0;  // of the current operation
  PassRecorder recorder_;
};

}  // namespace sluice::engine
