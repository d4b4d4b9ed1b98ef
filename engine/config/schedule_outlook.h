// Describes the effect of a schedule on the remaining steps of a run, for messages before the first
// of them.
//
// A resumed run may be longer or shorter than before, and its schedule may have changed. If a
// schedule ends before the run does, the later steps use its last learning rate, which is often
// exactly 0.
//
// The number of steps must be known (not kOpenSteps). Steps that overflow do not advance a
// schedule; none are assumed. Pure; threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::config {

// A point in a run: its beginning, or that of a checkpoint.
struct RunPosition {
  std::int64_t global_step = 0;   // steps taken
  std::int64_t applied_step = 0;  // steps that advanced the schedule
};

// kInvalidArgument if all remaining steps would have a learning rate of exactly 0. Either the
// schedule has ended, or a run of epochs (run.epochs) is too short to leave the start of its
// warm-up. The message names the setting that fixes it. A rate of 0 that is configured is accepted.
Status check_steps_left(const Config& config, const RunPosition& position);

// A warning if the decay ends before the warm-up does, as in a short trial of a long run's
// configuration. DeepSpeed warns too. Empty otherwise.
std::string decay_before_warmup(const Schedule& schedule);

// One sentence, or empty: about steps after the end of the schedule, or a run that does not leave
// its warm-up.
std::string end_of_schedule(const Config& config, const RunPosition& position);

// "was" and "is" of the learning rate at the first remaining step at which it differs, and of the
// keys that cause this. Empty if all remaining steps keep their rates.
std::string change_of_schedule(const Config& was, const Config& now, const RunPosition& position);

// Whether a key is one of these, and those that differ, as in "run.steps was 100 and is 400".
bool concerns_schedule(std::string_view path);
std::string changed_schedule_keys(const Config& was, const Config& now);

}  // namespace sluice::config
