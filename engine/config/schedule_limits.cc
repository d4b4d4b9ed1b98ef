// Checks whether a schedule can run to its end. DeepSpeed and transformers would fail in the middle
// of a run, or never notice.
#include <cmath>

#include "engine/config/derive.h"

namespace sluice::config {
namespace {

constexpr std::string_view kParams = "scheduler.params.";

std::string key_and_value(const char* key, double value) {
  return std::string(kParams) + key + " " + short_text(Json(value));
}

std::string key_and_value(const char* key, std::int64_t value) {
  return std::string(kParams) + key + " " + std::to_string(value);
}

void check_polynomial(Derivation& derivation) {
  const Schedule& schedule = derivation.config.schedule;
  if (schedule.tail.end_lr < schedule.base_lr) return;
  derivation.reject(
      key_and_value("lr_end", schedule.tail.end_lr) +
      " is the end of the decay, and must be less than optimizer.params.lr, which is " +
      short_text(Json(schedule.base_lr)));
}

// A run that is shorter than its own schedule is not a contradiction.
void check_stable_decay(Derivation& derivation) {
  const Warmup& warmup = derivation.config.schedule.warmup;
  const Tail& tail = derivation.config.schedule.tail;
  if (derivation.given("scheduler.params.num_stable_steps") || warmup.steps == kOpenSteps ||
      warmup.total_steps == kOpenSteps || warmup.total_steps == derivation.config.run.steps)
    return;
  if (warmup.total_steps < warmup.steps) return;  // only a warning: decay_before_warmup()
  if (tail.decay_steps <= warmup.total_steps - warmup.steps) return;
  derivation.reject(key_and_value("num_decay_steps", tail.decay_steps) + " and " +
                    key_and_value("warmup_num_steps", warmup.steps) + " are more than " +
                    key_and_value("total_num_steps", warmup.total_steps) +
                    ", which includes both: shorten one of them");
}

void check_momentum(Derivation& derivation) {
  const Schedule& schedule = derivation.config.schedule;
  const OneCycle& cycle = schedule.one_cycle;
  if (cycle.min_momentum > cycle.max_momentum) {
    return derivation.reject(key_and_value("cycle_min_mom", cycle.min_momentum) + " is more than " +
                             key_and_value("cycle_max_mom", cycle.max_momentum) + ": swap the two");
  }
  if (cycle.max_momentum >= 1) {
    return derivation.reject(key_and_value("cycle_max_mom", cycle.max_momentum) +
                             " is not a valid beta1 for Adam: it must be below 1");
  }
  const std::int64_t steps = derivation.config.run.steps;
  if (steps == kOpenSteps) return;
  const double last = betas(schedule, steps - 1)[0];
  if (last >= 0 && last < 1) return;
  derivation.reject(key_and_value("decay_mom_rate", cycle.momentum_decay_rate) +
                    " takes beta1 to " + short_text(Json(last)) + " by step " +
                    std::to_string(steps) +
                    " of run.steps, but it must stay in [0, 1): choose a rate nearer to 0, or a "
                    "larger scheduler.params.decay_step_size");
}

void check_one_cycle(Derivation& derivation) {
  const OneCycle& cycle = derivation.config.schedule.one_cycle;
  const bool has_bounds = derivation.given("scheduler.params.cycle_min_lr") &&
                          derivation.given("scheduler.params.cycle_max_lr");
  if (has_bounds && cycle.min_lr > cycle.max_lr) {
    derivation.reject(key_and_value("cycle_min_lr", cycle.min_lr) + " is more than " +
                      key_and_value("cycle_max_lr", cycle.max_lr) + ": swap the two");
  }
  if (cycle.cycle_momentum) check_momentum(derivation);
}

void check_range_test(Derivation& derivation) {
  const Schedule& schedule = derivation.config.schedule;
  const RangeTest& test = schedule.range_test;
  if (test.min_lr == 0) {
    return derivation.reject(
        "scheduler.params.lr_range_test_min_lr is 0, but every learning rate of the test is a "
        "multiple of it: it must be more than 0");
  }
  const std::int64_t steps = derivation.config.run.steps;
  if (steps == kOpenSteps) return;
  const double last = learning_rate(schedule, steps - 1);
  if (std::isfinite(last) && last >= 0) return;
  derivation.reject(key_and_value("lr_range_test_step_rate", test.step_rate) +
                    " takes the learning rate to " +
                    (std::isfinite(last) ? short_text(Json(last)) : "infinity") + " by step " +
                    std::to_string(steps) + " of run.steps: choose a rate nearer to 0");
}

}  // namespace

void check_schedule(Derivation& derivation) {
  switch (derivation.config.schedule.type) {
    case ScheduleType::kPolynomial:
      return check_polynomial(derivation);
    case ScheduleType::kStableDecay:
      return check_stable_decay(derivation);
    case ScheduleType::kOneCycle:
      return check_one_cycle(derivation);
    case ScheduleType::kRangeTest:
      return check_range_test(derivation);
    case ScheduleType::kConstant:
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay:
    case ScheduleType::kWarmupCosine:
    case ScheduleType::kLinear:
    case ScheduleType::kCosine:
    case ScheduleType::kCosineRestarts:
    case ScheduleType::kCosineMinLr:
    case ScheduleType::kConstantWarmup:
    case ScheduleType::kInverseSqrt:
      return;
  }
}

}  // namespace sluice::config
