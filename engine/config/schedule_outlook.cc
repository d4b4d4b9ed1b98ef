#include "engine/config/schedule_outlook.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "aio/text.h"
#include "engine/config/changes.h"
#include "engine/config/lr_schedule.h"

namespace sluice::config {
namespace {

constexpr const char* kTotalKey = "scheduler.params.total_num_steps";

// The number of updates after which the rate is constant, and the key that determines it. Nothing
// for a rate that never becomes constant, or always is.
struct End {
  std::int64_t step;
  const char* key;
  bool follows_run;        // "auto" makes it the length of the run
  std::int64_t after = 1;  // updates until the first one at the last rate
};

// The end of its three parts, which is total_num_steps unless num_stable_steps is given.
End end_of_stable_decay(const Schedule& schedule) {
  std::int64_t end = schedule.warmup.steps;
  for (const std::int64_t part : {schedule.tail.stable_steps, schedule.tail.decay_steps})
    if (__builtin_add_overflow(end, part, &end)) end = std::numeric_limits<std::int64_t>::max() / 2;
  const bool is_total = end == schedule.warmup.total_steps;
  return {end, is_total ? kTotalKey : "scheduler.params.num_stable_steps", true, 0};
}

std::optional<End> end_of(const Schedule& schedule) {
  switch (schedule.type) {
    case ScheduleType::kWarmupDecay:
    case ScheduleType::kWarmupCosine:
      return End{schedule.warmup.total_steps, kTotalKey, true};
    case ScheduleType::kLinear:
    case ScheduleType::kCosine:
    case ScheduleType::kCosineRestarts:
    case ScheduleType::kCosineMinLr:
    case ScheduleType::kPolynomial:
      return End{schedule.warmup.total_steps, kTotalKey, true, 0};
    case ScheduleType::kStableDecay:
      return end_of_stable_decay(schedule);
    case ScheduleType::kOneCycle: {
      const OneCycle& cycle = schedule.one_cycle;
      if (cycle.decay_steps != 0 && cycle.lr_decay_rate != 0 && cycle.min_lr != 0) return {};
      return End{cycle.first_steps + cycle.second_steps, "scheduler.params.cycle_first_step_size",
                 false};
    }
    case ScheduleType::kConstant:
    case ScheduleType::kWarmup:
    case ScheduleType::kRangeTest:
    case ScheduleType::kConstantWarmup:
    case ScheduleType::kInverseSqrt:
      break;
  }
  return {};
}

// The number of warm-up updates; 0: no warm-up.
std::int64_t warmup_of(const Schedule& schedule) {
  switch (schedule.type) {
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay:
    case ScheduleType::kWarmupCosine:
      return std::max<std::int64_t>(schedule.warmup.steps, 2);
    default:
      return is_of_transformers(schedule.type) ? schedule.warmup.steps : 0;
  }
}

// Whether the schedule ever has a rate other than 0.
bool ever_moves_weights(const Schedule& schedule) {
  switch (schedule.type) {
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay:
      return schedule.warmup.max_lr > 0 || schedule.warmup.min_lr > 0;
    case ScheduleType::kOneCycle:
      return schedule.one_cycle.max_lr > 0;
    default:
      return schedule.base_lr > 0;
  }
}

std::string rate_text(double rate) { return rate == 0 ? "exactly 0" : significant(rate, 4); }

std::int64_t steps_left(const Config& config, const RunPosition& position) {
  return std::max<std::int64_t>(config.run.steps - position.global_step, 0);
}

std::string steps_text(std::int64_t count) {
  return std::to_string(count) + (count == 1 ? " step" : " steps");
}

std::string remedy(const End& end, std::int64_t run_steps) {
  return end.follows_run ? std::string("--set ") + end.key + "=auto sets it from run.steps (" +
                               std::to_string(run_steps) + ")"
                         : "raise " + std::string(end.key) + ", or choose another scheduler.type";
}

// The number of remaining steps before the first at which the rates differ; nothing if they never
// do. Checks each step, or a million evenly spaced ones if there are more.
std::optional<std::int64_t> first_difference(const Config& was, const Config& now,
                                             const RunPosition& position) {
  constexpr std::int64_t kMostLooks = 1'000'000;
  const std::int64_t left = steps_left(now, position);
  const std::int64_t stride = std::max<std::int64_t>(1, left / kMostLooks);
  const auto differs = [&](std::int64_t ahead) {
    const std::int64_t applied = position.applied_step + ahead;
    return learning_rate(was.schedule, applied) != learning_rate(now.schedule, applied);
  };
  if (left == 0) return {};
  std::int64_t same = -1;
  std::int64_t other = 0;
  for (; !differs(other); other = std::min(other + stride, left - 1)) {
    if (other == left - 1) return {};
    same = other;
  }
  while (other - same > 1) {
    const std::int64_t between = same + (other - same) / 2;
    (differs(between) ? other : same) = between;
  }
  return other;
}

// An error for a run of epochs with too few steps for the warm-up to leave 0, for its number of
// steps depends on the data. If the steps are set explicitly, this is only a warning.
Status check_warmup(const Schedule& schedule, std::int64_t left, std::int64_t last) {
  if (last >= warmup_of(schedule) || learning_rate(schedule, last) != 0) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      (left == 1 ? "the one remaining step" : "all " + steps_text(left) + " that are left") +
          " would have a learning rate of exactly 0, where the warm-up starts, and change nothing: "
          "train longer (run.epochs, run.steps, more data), use smaller steps "
          "(gradient_accumulation_steps), or --set scheduler.params." +
          (is_of_transformers(schedule.type) ? "warmup_num_steps=0"
                                             : "warmup_min_lr to more than 0"));
}

}  // namespace

Status check_steps_left(const Config& config, const RunPosition& position) {
  const Schedule& schedule = config.schedule;
  const std::int64_t left = steps_left(config, position);
  if (left == 0 || !ever_moves_weights(schedule)) return {};
  if (config.run.epochs)
    SLUICE_RETURN_IF_ERROR(check_warmup(schedule, left, position.applied_step + left - 1));
  const auto end = end_of(schedule);
  if (!end || position.applied_step < end->step) return {};
  // The rate at the very end of a linear decay is not yet 0, but all later rates are.
  const std::int64_t last = position.applied_step + left - 1;
  const bool one_is_left = learning_rate(schedule, position.applied_step) != 0;
  const std::int64_t zeros = one_is_left ? left - 1 : left;
  if (zeros == 0 || learning_rate(schedule, last) != 0 ||
      learning_rate(schedule, last - zeros + 1) != 0)
    return {};
  return Error(ErrorCode::kInvalidArgument,
               (one_is_left ? std::to_string(zeros) + " of the " + steps_text(left)
                            : "all " + steps_text(left)) +
                   " that are left would have a learning rate of exactly 0: the schedule ended at "
                   "step " +
                   std::to_string(end->step) + " (" + end->key + "), and the run has done " +
                   std::to_string(position.global_step) + "; " + remedy(*end, config.run.steps));
}

std::string decay_before_warmup(const Schedule& schedule) {
  const auto end = end_of(schedule);
  const std::int64_t total = schedule.warmup.total_steps;
  const std::int64_t warmup = schedule.warmup.steps;
  if (!end || schedule.type == ScheduleType::kOneCycle || total < 0 || total >= warmup) return {};
  return std::string(kTotalKey) + " " + std::to_string(total) + " is less than warmup_num_steps " +
         std::to_string(warmup) +
         ": there is no decay, and all steps after the warm-up have the schedule's last rate. "
         "total_num_steps includes the warm-up";
}

std::string end_of_schedule(const Config& config, const RunPosition& position) {
  const Schedule& schedule = config.schedule;
  const std::int64_t left = steps_left(config, position);
  const std::int64_t last = position.applied_step + left - 1;
  if (left == 0 || !ever_moves_weights(schedule)) return {};
  if (last < warmup_of(schedule)) {
    return "all steps of this run are within the warm-up: the run has " +
           std::to_string(config.run.steps) + ", and scheduler.params.warmup_num_steps is " +
           std::to_string(schedule.warmup.steps) + ". The learning rate reaches only " +
           rate_text(learning_rate(schedule, last));
  }
  if (const std::string before = decay_before_warmup(schedule); !before.empty()) return before;
  const auto end = end_of(schedule);
  if (!end || last < end->step + end->after) return {};
  // OneCycle defines a rate for after the cycle.
  if (!end->follows_run && learning_rate(schedule, last) != 0) return {};
  const std::int64_t after = last + 1 - std::max(end->step + end->after, position.applied_step);
  return "the schedule ends at step " + std::to_string(end->step) + " (" + end->key +
         "), and the run has " + std::to_string(config.run.steps) + ": its last " +
         steps_text(after) + (after == 1 ? " has" : " have") + " a learning rate of " +
         rate_text(learning_rate(schedule, last)) + "; " + remedy(*end, config.run.steps);
}

bool concerns_schedule(std::string_view path) {
  return path.starts_with("scheduler.") || path == "optimizer.params.lr" || path == "run.steps";
}

std::string changed_schedule_keys(const Config& was, const Config& now) {
  std::string text;
  for (const KeyChange& change : changed_keys(was, now))
    if (change.read_by_both && concerns_schedule(change.path))
      text += (text.empty() ? "" : ", ") + to_text(change);
  return text;
}

std::string change_of_schedule(const Config& was, const Config& now, const RunPosition& position) {
  const auto ahead = first_difference(was, now, position);
  if (!ahead) return {};
  const auto rate = [&](const Schedule& schedule) {
    return rate_text(learning_rate(schedule, position.applied_step + *ahead));
  };
  const std::string keys = changed_schedule_keys(was, now);
  return "the schedule has changed since the checkpoint was written: the learning rate of step " +
         std::to_string(position.global_step + *ahead + 1) + " was " + rate(was.schedule) +
         ", and is now " + rate(now.schedule) + (keys.empty() ? "" : " (" + keys + ")");
}

}  // namespace sluice::config
