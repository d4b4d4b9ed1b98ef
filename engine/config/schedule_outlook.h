// What a schedule makes of the steps that a run has left, told to the user before the first of
// them.
//
// A resumed run may have become longer or shorter, and its schedule may have changed; where a
// schedule ends before the run does, the steps after its end have its last learning rate, which is
// often exactly 0.
//
// The number of steps must be known (not kOpenSteps). Steps that overflow do not move a schedule;
// none are assumed to come. Pure; threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::config {

// Where a run stands: at its beginning, or where a checkpoint was written.
struct RunPosition {
  std::int64_t global_step = 0;   // steps taken
  std::int64_t applied_step = 0;  // of which moved the schedule
};

// kInvalidArgument where all steps that are left would have a learning rate of exactly 0 because
// the schedule is over, or because a run of epochs (run.epochs) is too short to leave the beginning
// of its warm-up, with the setting that fixes it. A rate of 0 that was asked for is not refused.
Status check_steps_left(const Config& config, const RunPosition& position);

// That the decay ends before the warm-up does, as in a short trial of a long run's configuration.
// DeepSpeed warns, too. Empty where it does not.
std::string decay_before_warmup(const Schedule& schedule);

// One sentence each, empty where there is nothing to say: steps beyond the end of the schedule, or
// a run that does not leave its warm-up.
std::string end_of_schedule(const Config& config, const RunPosition& position);

// "was" and "is" of the learning rate at the first remaining step at which it differs, and of
// the keys that make the difference. Empty where all remaining steps keep their rates.
std::string change_of_schedule(const Config& was, const Config& now, const RunPosition& position);

// Whether a key is one of those; and those that differ, as in "run.steps was 100 and is 400".
bool concerns_schedule(std::string_view path);
std::string changed_schedule_keys(const Config& was, const Config& now);

}  // namespace sluice::config
