// Loss scaling for fp16: the factor by which the next step's loss is multiplied, so that small
// gradients survive in 16 bits, and its response to an overflow. It follows DeepSpeed's definition,
// number for number.
//
// The rules are the configuration's "fp16" section. The state is plain numbers that a checkpoint
// stores; only the functions below change it. A static scale never changes.
//
// A dynamic scale is doubled after every `window_steps` steps without overflow. An overflow halves
// it, but only once `hysteresis` - 1 others have been tolerated, and never below `min_scale`.
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
  std::int64_t steps = 0;                // steps that updated this state
  std::int64_t last_overflow_step = -1;  // in the numbering of `steps`; -1: none
  int hysteresis_left = 1;               // an overflow that finds 1 here halves the scale

  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

// kInvalidArgument names the key that is out of range.
Result<LossScaleState> initial_loss_scale(const LossScaleRules& rules);

// Whether a stored state can have come from these rules; the kCorrupt error says what is
// impossible.
Status check_loss_scale(const LossScaleRules& rules, const LossScaleState& state);

// The state with which a run that finds `stored` in its checkpoint continues. A dynamic scale
// continues from `stored`, checked as above; a static scale always comes from the rules.
Result<LossScaleState> continued_loss_scale(const LossScaleRules& rules,
                                            const LossScaleState& stored);

// Updates the state after a step. `overflow`: its gradients were not all finite, and the step is
// skipped. If the scale is already min_scale, it cannot be halved: returns kInvalidArgument, with
// the state unchanged, and training has to stop. The caller can append the unit's name to the
// message (Error::with_suffix).
Status update_loss_scale(const LossScaleRules& rules, bool overflow, LossScaleState& state);

}  // namespace sluice::engine
