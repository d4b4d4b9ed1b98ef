#include "engine/step/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "aio/text.h"

namespace sluice::engine {
namespace {

constexpr double kFactor = 2;
constexpr int kMaxScalePower = 126;  // both the scale and its reciprocal are normal fp32 numbers

Error out_of_range(const char* key, const char* what) {
  return Error(ErrorCode::kInvalidArgument, std::string("fp16.") + key + " must be " + what);
}

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

Error at_the_floor(const LossScaleState& state) {
  return Error(
      ErrorCode::kInvalidArgument,
      "the gradients are not finite at a loss scale of " + significant(state.scale) +
          ", the smallest that fp16.min_loss_scale allows: the model diverges, or its numbers "
          "overflow fp16. Lower the learning rate, check the data, or train in bf16");
}

}  // namespace

Result<LossScaleState> initial_loss_scale(const LossScaleRules& rules) {
  if (!rules.dynamic()) {
    if (!is_positive(rules.static_scale)) {
      return out_of_range("loss_scale", "a positive number, or 0 for dynamic scaling");
    }
    return LossScaleState{.scale = rules.static_scale};
  }
  if (rules.initial_scale_power < -kMaxScalePower || rules.initial_scale_power > kMaxScalePower) {
    return out_of_range("initial_scale_power", "between -126 and 126");
  }
  if (rules.window_steps < 1) return out_of_range("loss_scale_window", "1 or more");
  if (rules.hysteresis < 1) return out_of_range("hysteresis", "1 or more");
  if (!is_positive(rules.min_scale)) return out_of_range("min_loss_scale", "a positive number");
  return LossScaleState{.scale = std::ldexp(1.0, rules.initial_scale_power),
                        .hysteresis_left = rules.hysteresis};
}

Status check_loss_scale(const LossScaleRules& rules, const LossScaleState& state) {
  const auto wrong = [](const std::string& what) {
    return Error(ErrorCode::kCorrupt, "the stored loss scale cannot be used: " + what);
  };
  if (!is_positive(state.scale)) return wrong("it is " + significant(state.scale));
  if (!rules.dynamic()) {
    if (state.scale == rules.static_scale) return {};
    return wrong("it is " + significant(state.scale) + ", but fp16.loss_scale is " +
                 significant(rules.static_scale));
  }
  if (state.steps < 0 || state.last_overflow_step < -1 || state.last_overflow_step >= state.steps) {
    return wrong("its last overflow is at step " + std::to_string(state.last_overflow_step) +
                 " of " + std::to_string(state.steps));
  }
  if (state.hysteresis_left < 1 || state.hysteresis_left > rules.hysteresis) {
    return wrong(std::to_string(state.hysteresis_left) + " overflows are left of fp16.hysteresis " +
                 std::to_string(rules.hysteresis));
  }
  return {};
}

Result<LossScaleState> continued_loss_scale(const LossScaleRules& rules,
                                            const LossScaleState& stored) {
  if (!rules.dynamic()) return initial_loss_scale(rules);
  SLUICE_RETURN_IF_ERROR(check_loss_scale(rules, stored));
  return stored;
}

Status update_loss_scale(const LossScaleRules& rules, bool overflow, LossScaleState& state) {
  if (!rules.dynamic()) return {};
  if (overflow) {
    if (state.hysteresis_left > 1) {
      --state.hysteresis_left;
    } else if (state.scale == rules.min_scale) {
      return at_the_floor(state);
    } else {
      state.scale = std::max(state.scale / kFactor, rules.min_scale);
    }
    state.last_overflow_step = state.steps;
  } else {
    if (rules.consecutive_hysteresis) state.hysteresis_left = rules.hysteresis;
    const std::int64_t stable_steps = state.steps - state.last_overflow_step - 1;
    if (stable_steps > 0 && stable_steps % rules.window_steps == 0) {
      state.hysteresis_left = rules.hysteresis;
      state.scale *= kFactor;
    }
  }
  ++state.steps;
  return {};
}

}  // namespace sluice::engine
