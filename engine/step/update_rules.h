// What a step does with its gradient once that is complete: the scalars of AdamW, the loss scale,
// and what becomes of a step whose gradient is not finite. Shared by all that train: Trainer, and
// runs whose passes are somebody else's (engine/module/).
//
// Threads: pure functions of what they are given.
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

// What the next step depends on besides weights and moments: what a checkpoint has to hold.
struct TrainState {
  std::int64_t global_step = 0;   // steps taken, skipped ones included
  std::int64_t applied_step = 0;  // updates applied
  std::uint64_t samples_drawn = 0;
  std::int64_t skipped_in_a_row = 0;  // by run.non_finite_step, up to the last step
  LossScaleState loss_scale;
};

struct UpdateRules {
  config::Optimizer optimizer;
  config::Schedule schedule;
  // A step's scalars are made from them, in this order (StatePlan::settings).
  std::vector<config::ParameterSetting> settings;
  double clip_norm = 0;
  double clip_value = 0;
  std::optional<LossScaleRules> loss_scale;  // fp16
  config::NonFiniteStep non_finite_step = config::NonFiniteStep::kStop;
  std::int64_t max_skipped_steps = 0;
};

// Of a configuration, whose settings StatePlan has.
UpdateRules update_rules(const config::Config& config,
                         std::vector<config::ParameterSetting> settings);
// With the loss scale that a run begins with. kInvalidArgument names the key that is out of range.
Result<TrainState> initial_state(const UpdateRules& rules);
// What a run goes on with that was stored in this state: warns where its loss scale is another one.
// kCorrupt: it cannot have come from these rules.
Result<TrainState> continued_state(const UpdateRules& rules, TrainState stored);

// The factor of the next step's loss.
double loss_scale(const UpdateRules& rules, const TrainState& state);
// Of the next step, by StatePlan::settings. `grad_norm`: without the loss scale.
void make_scalars(const UpdateRules& rules, const TrainState& state, double grad_norm,
                  std::vector<offload::AdamwScalars>& scalars);
// The step is applied.
void count_applied(const UpdateRules& rules, TrainState& state);

// The gradient of a step is not finite, in this unit first; `suspects` says on which data. Counts
// the step as skipped, and returns a sentence where run.non_finite_step has let it pass (a dynamic
// loss scale goes without), or throws NonFiniteGradient.
struct NonFinite {
  std::string unit;
  std::function<std::string()> suspects;
};
std::string skip_step(const UpdateRules& rules, const NonFinite& what, TrainState& state);

}  // namespace sluice::engine
