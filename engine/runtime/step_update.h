// StepUpdate: ends a step once its gradient is complete, whichever driver computed the passes. It
// runs AdamW for all units, or skips the step if the gradient is not finite. It owns the state
// besides weights and moments on which the next step depends.
//
// A step whose gradient is not finite changes no parameter and no moment. The dynamic loss scale of
// fp16 or run.non_finite_step may skip it. Its batch is then used up: global_step and the loss
// scale advance, applied_step (Adam's t and the schedule's) does not.
//
// Threads: the training thread.
// Errors:  TrainError, NonFiniteGradient.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/phase_clock.h"
#include "engine/observe/pass_span.h"
#include "engine/runtime/resources.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/update_rules.h"
#include "offload/adamw/adamw.h"

namespace sluice::engine {

struct StepTimes {
  std::int64_t forward_ns = 0;  // without waits for updates
  std::int64_t backward_ns = 0;
  std::int64_t update_ns = 0;          // the last completed update, overlapped or not
  std::int64_t update_exposed_ns = 0;  // how long this step waited for updates
  // Forward and backward by phase, if measured (Trainer::measure_phases()).
  std::optional<std::array<std::int64_t, kPassPhases>> passes = {};
};

// How the step's tokens were shared among experts, over all ranks.
struct ExpertFigures {
  std::int64_t layers = 0;  // with experts; 0: the model has none
  std::int64_t experts = 0;
  std::vector<std::int64_t> rows;      // [layers, experts]: how often each was chosen
  std::optional<double> balance_loss;  // mean over micro-batches, without the coefficient
};

struct StepOutcome {
  double loss = 0;  // mean over the step's tokens, without the balance loss
  double grad_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;  // the one this step used
  bool skipped = false;
  std::string warning;  // if run.non_finite_step skipped the step: a sentence
  StepTimes times;
  ExpertFigures experts;
};

class StepUpdate {
 public:
  struct Options {
    UpdateRules rules;
    bool in_background = true;  // overlapped with the next forward
  };
  // `parts` must be made for training, and must outlive it.
  StepUpdate(Resources& parts, const Options& options, const TrainState& state)
      : parts_(parts), options_(options), state_(state) {}

  const TrainState& state() const { return state_; }
  // Continues from `state`; call it between steps.
  void set_state(const TrainState& state) { state_ = state; }
  void count_samples(std::uint64_t samples) { state_.samples_drawn += samples; }
  // Whether a save in place follows the next step: OptimizerOffloader::Step::keeps_parameters.
  void expect_save(bool expected) { expects_save_ = expected; }

  // The next step's.
  double loss_scale() const { return engine::loss_scale(options_.rules, state_); }
  double learning_rate() const {
    return config::learning_rate(options_.rules.schedule, state_.applied_step);
  }
  StepOutcome begin() const {
    return {.learning_rate = learning_rate(), .loss_scale = loss_scale()};
  }

  // The data of a step: the mean loss of each of this rank's micro-batches and, if known, where
  // each one is from.
  struct Data {
    std::function<std::vector<double>()> losses;
    std::function<std::string(std::size_t micro_batch)> source_of = {};
  };
  // Requires that the whole gradient is where the optimizer reads it. Collective.
  void end(const GradientTotals& totals, const Data& data, StepOutcome& outcome);

 private:
  void apply(StepOutcome& outcome);
  std::string suspects(const Data& data) const;

  Resources& parts_;
  const Options options_;
  TrainState state_;
  bool expects_save_ = false;
  std::vector<offload::AdamwScalars> scalars_;  // by StatePlan::settings
};

}  // namespace sluice::engine
