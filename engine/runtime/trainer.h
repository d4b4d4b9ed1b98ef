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
// With experts, forward counts how tokens are shared among them. Their balance loss, if there is
// one, is complete when a wave has passed the last block, and backward adds its gradient.
//
// Exact:   no staleness, clipping kept; the placement of state and the time of its update do not
//          change a bit.
// Threads: one.
// Errors:  thrown: c10::Error or TrainError; both end the run: resume from a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/device/phase_clock.h"
#include "engine/model/expert_load.h"
#include "engine/model/model.h"
#include "engine/observe/pass_span.h"
#include "engine/runtime/evaluation_pass.h"
#include "engine/runtime/resources.h"
#include "engine/runtime/step_engine.h"
#include "engine/runtime/step_update.h"
#include "engine/step/step_batch.h"
#include "engine/step/train_error.h"
#include "engine/step/unit_binding.h"
#include "engine/step/update_rules.h"
#include "offload/step_program.h"

namespace sluice::engine {

// PassRecorder: when the device that computes ran each phase of each unit in a step, in the
// device's own time.
//
//   recorder.begin_step(PassRecorder::How::kMarks);
//   recorder.next({.phase = PassPhase::kForward, .unit = 3});  // ends the previous phase
//   ... enqueued ...
//   recorder.end();
//   ... once the device is done with the step ...
//   const std::vector<PassSpan>& spans = recorder.finish();
//
// Marks give durations and cost next to nothing, on a GPU too. Stamps also give times on the
// traces' clock, and each costs some microseconds of GPU time.
//
// A listener gets each phase when the host reaches it, which on a GPU is before the device does.
//
// Threads: the training thread.
class PassRecorder {
 public:
  enum class How : std::uint8_t { kNot, kMarks, kStamps };

  // Gets the phase that begins; null: what follows belongs to no phase.
  using Listener = std::function<void(const PassSpan*)>;

  // The recorder owns the clock's marks from `first_mark` on.
  PassRecorder(PhaseClock& clock, int first_mark) : clock_(clock), first_mark_(first_mark) {}

  // Sets the listener; an empty one removes it.
  void set_listener(Listener listener) { listener_ = std::move(listener); }

  void begin_step(How how) {
    how_ = how;
    count_ = 0;
    open_ = false;
    pieces_.clear();
    stamps_.clear();
    spans_.clear();
  }
  // Begins a phase, which ends the previous one; `what`'s times are not read.
  void next(const PassSpan& what) {
    if (listener_) listener_(&what);
    if (how_ == How::kNot) return;
    pieces_.push_back({.span = what, .begin = boundary()});
    if (open_) pieces_[pieces_.size() - 2].end = pieces_.back().begin;
    open_ = true;
  }
  void end() {
    if (listener_) listener_(nullptr);
    if (how_ == How::kNot || !open_) return;
    pieces_.back().end = boundary();
    open_ = false;
  }
  // Returns the spans in order, without nesting. Without stamps, time begins with the first span.
  const std::vector<PassSpan>& finish() {
    end();
    std::int64_t at_ns = 0;
    int at = 0;
    const auto time_of = [&](int boundary) {
      if (how_ == How::kStamps) return stamps_[static_cast<std::size_t>(boundary)];
      if (boundary > at) {
        at_ns += clock_.elapsed_ns(first_mark_ + at, first_mark_ + boundary);
        at = boundary;
      }
      return at_ns;
    };
    for (Piece& piece : pieces_) {
      piece.span.begin_ns = time_of(piece.begin);
      piece.span.end_ns = time_of(piece.end);
      spans_.push_back(piece.span);
    }
    pieces_.clear();
    return spans_;
  }
  // The spans of the last finish().
  const std::vector<PassSpan>& spans() const { return spans_; }

 private:
  struct Piece {
    PassSpan span;
    int begin = 0;
    int end = 0;
  };

  int boundary() {
    if (how_ == How::kStamps)
      clock_.stamp(&stamps_.emplace_back(0));
    else
      clock_.mark(first_mark_ + count_);
    return count_++;
  }

  PhaseClock& clock_;
  const int first_mark_;
  Listener listener_;
  How how_ = How::kNot;
  bool open_ = false;
  int count_ = 0;  // boundaries so far
  std::vector<Piece> pieces_;
  std::deque<std::int64_t> stamps_;  // addresses stay
  std::vector<PassSpan> spans_;
};

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
  void set_phase_listener(PassRecorder::Listener listener) {
    recorder_.set_listener(std::move(listener));
  }
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
  void expect_save(bool expected) { update_.expect_save(expected); }

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
  // The step's values of each micro-batch, in order, whichever rank has each.
  std::vector<double> of_step(const std::vector<at::Tensor>& own) const;
  ExpertFigures expert_figures() const;

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
  ExpertLoad load_;
  const StepBatch* batch_ = nullptr;  // the current step's
  StepTimes times_;
  double grad_scale_ = 1;
  double balance_scale_ = 1;  // of a micro-batch's balance loss

  bool measures_phases_ = false;
  int wave_ = 0;  // of the current operation
  PassRecorder recorder_;
};

}  // namespace sluice::engine
