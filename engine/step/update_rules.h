// What a step does once its gradient is complete: the scalars of AdamW, the loss scale, and the
// handling of a gradient that is not finite. Trainer uses it, and so do runs whose passes are
// computed elsewhere (engine/module/).
//
// Threads: pure functions of their arguments.
// Errors:  TrainError, NonFiniteGradient.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/parameter_groups.h"
#include "engine/step/loss_scaler.h"
#include "offload/adamw/adamw.h"

namespace sluice::engine {

// The state besides weights and moments on which the next step depends; a checkpoint stores it.
struct TrainState {
  std::int64_t global_step = 0;   // steps taken, skipped ones included
  std::int64_t applied_step = 0;  // updates applied
  std::uint64_t samples_drawn = 0;
  std::int64_t skipped_in_a_row = 0;  // skipped by run.non_finite_step, up to the last step
  LossScaleState loss_scale;
};

struct UpdateRules {
  config::Optimizer optimizer;
  config::Schedule schedule;
  // A step has one set of scalars for each of these, in this order (StatePlan::settings).
  std::vector<config::ParameterSetting> settings;
  double clip_norm = 0;
  double clip_value = 0;
  std::optional<LossScaleRules> loss_scale;  // fp16
  config::NonFiniteStep non_finite_step = config::NonFiniteStep::kStop;
  std::int64_t max_skipped_steps = 0;
};

// The rules of a configuration; `settings` is StatePlan::settings.
UpdateRules update_rules(const config::Config& config,
                         std::vector<config::ParameterSetting> settings);
// The state at the start of a run, with its initial loss scale. kInvalidArgument names the key that
// is out of range.
Result<TrainState> initial_state(const UpdateRules& rules);
// The state with which a run continues from a stored one. Warns if the loss scale changes.
// kCorrupt: the stored state cannot have come from these rules.
Result<TrainState> continued_state(const UpdateRules& rules, TrainState stored);

// The next step's loss scale.
double loss_scale(const UpdateRules& rules, const TrainState& state);
// The next step's scalars, in the order of StatePlan::settings. `grad_norm`: without the loss
// scale.
void make_scalars(const UpdateRules& rules, const TrainState& state, double grad_norm,
                  std::vector<offload::AdamwScalars>& scalars);
// Counts the step as applied.
void count_applied(const UpdateRules& rules, TrainState& state);

// Counts a step as skipped because its gradient is not finite. `unit` is the first bad unit;
// `suspects` describes the data. Returns a warning if run.non_finite_step allows the skip, and an
// empty string for a dynamic loss scale. Throws NonFiniteGradient if the step may not be skipped.
struct NonFinite {
  std::string unit;
  std::function<std::string()> suspects;
};
std::string skip_step(const UpdateRules& rules, const NonFinite& what, TrainState& state);

}  // namespace sluice::engine
