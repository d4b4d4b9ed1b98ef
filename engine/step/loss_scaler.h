// Loss scaling for fp16: the factor by which the next step's loss is multiplied, so that small
// gradients survive in sixteen bits, and what an overflow does to it. DeepSpeed's definition,
// number for number.
//
// The rules are the configuration's "fp16" section, the state is plain numbers that a checkpoint
// stores; the functions below are all that changes it. A static scale never changes.
//
// The dynamic one is doubled after every `window_steps` steps without overflow, and halved by an
// overflow once `hysteresis` - 1 others have been tolerated; it is never halved below `min_scale`.
// Tolerated overflows are forgotten when the scale is doubled or, with consecutive_hysteresis,
// after any step without overflow.
#pragma once

#include <cstdint>

#include "aio/result.h"

namespace sluice::engine {

struct LossScaleRules {
  double static_scale = 0;  // "loss_scale"; 0: dynamic
  int initial_scale_power = 16;
  std::int64_t window_steps = 1000;  // "loss_scale_window"
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_scale = 1;  // "min_loss_scale"

  bool dynamic() const { return static_scale == 0; }
};

struct LossScaleState {
  double scale = 1;
  std::int64_t steps = 0;                // that updated this state
  std::int64_t last_overflow_step = -1;  // counted as `steps` counts; -1: none
  int hysteresis_left = 1;               // the overflow that finds 1 halves the scale

  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

// kInvalidArgument names the key that is out of range.
Result<LossScaleState> initial_loss_scale(const LossScaleRules& rules);

// Whether a stored state can have come from these rules; kCorrupt says what is impossible.
Status check_loss_scale(const LossScaleRules& rules, const LossScaleState& state);

// What a run that finds `stored` in its checkpoint continues with: a dynamic scale from there,
// checked as above; a static one is the rules' own, whatever was stored.
Result<LossScaleState> continued_loss_scale(const LossScaleRules& rules,
                                            const LossScaleState& stored);

// After a step, whose gradients were all finite or not (`overflow`: the step is skipped).
// kInvalidArgument, and an unchanged state, when they overflowed at a scale that is already
// min_scale: no smaller one is allowed, so training has to stop. The sentence ends so that the
// caller can add which unit it was (Error::with_suffix).
Status update_loss_scale(const LossScaleRules& rules, bool overflow, LossScaleState& state);

}  // namespace sluice::engine
