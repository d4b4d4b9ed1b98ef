#include "engine/step/update_rules.h"

#include <utility>

#include "aio/log.h"
#include "aio/text.h"
#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

// `what` says which step, where and on which data.
std::string skip_or_stop(const UpdateRules& rules, const std::string& what, TrainState& state) {
  const std::string limit = std::to_string(rules.max_skipped_steps);
  const std::string scale =
      rules.loss_scale ? ", a lower fp16.loss_scale (0 adapts it to the run)" : "";
  if (rules.non_finite_step == config::NonFiniteStep::kStop) {
    throw NonFiniteGradient(
        what +
        ". No weight was changed. A plain resume reaches the same step and stops again: add --set "
        "run.non_finite_step=skip to skip it, or continue with a lower learning rate" +
        scale + " or with gradient_clipping");
  }
  if (state.skipped_in_a_row >= rules.max_skipped_steps) {
    throw NonFiniteGradient(
        what + ". The " + limit +
        " steps before it were skipped for the same reason, and run.max_skipped_steps allows no "
        "more: with so many in a row the cause is rarely the data. A plain resume reaches the same "
        "step and stops again: continue from an older checkpoint, with a lower learning rate" +
        scale + " or with gradient_clipping");
  }
  ++state.skipped_in_a_row;
  return what + ". The step is skipped (" + std::to_string(state.skipped_in_a_row) +
         " in a row, at most " + limit + ": run.max_skipped_steps)";
}

}  // namespace

UpdateRules update_rules(const config::Config& config,
                         std::vector<config::ParameterSetting> settings) {
  UpdateRules rules{.optimizer = config.optimizer,
                    .schedule = config.schedule,
                    .settings = std::move(settings),
                    .clip_norm = config.gradient_clipping_norm,
                    .clip_value = config.gradient_clipping_value,
                    .non_finite_step = config.run.non_finite_step,
                    .max_skipped_steps = config.run.max_skipped_steps};
  if (config.precision != config::Precision::kFp16) return rules;
  rules.loss_scale =
      LossScaleRules{.static_scale = config.fp16.static_loss_scale,
                     .initial_scale_power = static_cast<int>(config.fp16.initial_scale_power),
                     .window_steps = config.fp16.loss_scale_window_steps,
                     .hysteresis = static_cast<int>(config.fp16.hysteresis),
                     .consecutive_hysteresis = config.fp16.consecutive_hysteresis,
                     .min_scale = config.fp16.min_loss_scale};
  return rules;
}

Result<TrainState> initial_state(const UpdateRules& rules) {
  TrainState state;
  if (rules.loss_scale) {
    SLUICE_ASSIGN_OR_RETURN(state.loss_scale, initial_loss_scale(*rules.loss_scale));
  }
  return state;
}

Result<TrainState> continued_state(const UpdateRules& rules, TrainState stored) {
  if (!rules.loss_scale) return stored;
  const double was = stored.loss_scale.scale;
  SLUICE_ASSIGN_OR_RETURN(stored.loss_scale,
                          continued_loss_scale(*rules.loss_scale, stored.loss_scale));
  if (stored.loss_scale.scale != was)
    log::warning("the loss scale was " + significant(was) + " and is now " +
                 significant(stored.loss_scale.scale) + " (fp16.loss_scale)");
  return stored;
}

double loss_scale(const UpdateRules& rules, const TrainState& state) {
  return rules.loss_scale ? state.loss_scale.scale : 1.0;
}

void make_scalars(const UpdateRules& rules, const TrainState& state, double grad_norm,
                  std::vector<offload::AdamwScalars>& scalars) {
  const config::Betas betas = config::betas(rules.schedule, state.applied_step);
  scalars.clear();
  for (const config::ParameterSetting& setting : rules.settings) {
    scalars.push_back(value_or_throw(
        offload::make_adamw_scalars({.learning_rate = config::learning_rate(
                                         rules.schedule, state.applied_step, setting.learning_rate),
                                     .beta1 = betas[0],
                                     .beta2 = betas[1],
                                     .eps = rules.optimizer.eps,
                                     .weight_decay = setting.weight_decay,
                                     .adam_w_mode = rules.optimizer.adam_w_mode,
                                     .bias_correction = rules.optimizer.bias_correction,
                                     .step = state.applied_step + 1,
                                     .loss_scale = loss_scale(rules, state),
                                     .grad_norm = grad_norm,
                                     .clip_norm = rules.clip_norm,
                                     .clip_value = rules.clip_value})));
  }
}

void count_applied(const UpdateRules& rules, TrainState& state) {
  if (rules.loss_scale)
    throw_if_error(update_loss_scale(*rules.loss_scale, false, state.loss_scale));
  ++state.global_step;
  ++state.applied_step;
  state.skipped_in_a_row = 0;
}

std::string skip_step(const UpdateRules& rules, const NonFinite& what, TrainState& state) {
  const std::string step = std::to_string(state.global_step + 1);
  std::string warning;
  if (rules.loss_scale && rules.loss_scale->dynamic()) {
    const Status scaled = update_loss_scale(*rules.loss_scale, true, state.loss_scale);
    if (!scaled.ok()) {
      throw NonFiniteGradient(scaled.error().message() +
                              "; the first unit with such a gradient is " + what.unit +
                              ", in step " + step + " (" + what.suspects() + ")");
    }
  } else {
    warning = skip_or_stop(rules,
                           "the gradient of step " + step + " is not finite, in unit " + what.unit +
                               " first (" + what.suspects() + ")",
                           state);
  }
  ++state.global_step;
  return warning;
}

}  // namespace sluice::engine
