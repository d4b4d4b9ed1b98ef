#include "engine/config/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::config {
namespace {

// Progress of the warm-up, from 0 to 1. `iteration` is >= 0.
double warmup_share(const Warmup& warmup, double steps, double iteration) {
  if (warmup.type == WarmupType::kLinear) return iteration / steps;
  return 1.0 / std::log(steps) * std::log(iteration + 1);
}

double warmup_steps(const Warmup& warmup) {
  return static_cast<double>(std::max<std::int64_t>(2, warmup.steps));
}

double warmup_lr(const Schedule& schedule, double iteration) {
  const Warmup& warmup = schedule.warmup;
  if (iteration < 0) return warmup.min_lr;
  const double steps = warmup_steps(warmup);
  double share = 1;
  if (iteration < steps) {
    share = warmup_share(warmup, steps, iteration);
  } else if (schedule.type == ScheduleType::kWarmupDecay) {
    const auto total = static_cast<double>(warmup.total_steps);
    share = std::max(0.0, (total - iteration) / std::max(1.0, total - steps));
  }
  return warmup.min_lr + (warmup.max_lr - warmup.min_lr) * share;
}

// WarmupCosineLR; like the functions below, a factor of base_lr.
double warmup_cosine(const Schedule& schedule, double iteration) {
  if (iteration < 0) return 0;
  const Warmup& warmup = schedule.warmup;
  const double steps = warmup_steps(warmup);
  if (iteration < steps) {
    const double share = warmup_share(warmup, steps, iteration);
    return warmup.min_ratio + share * (1.0 - warmup.min_ratio);
  }
  const double decay_steps = std::max(1.0, static_cast<double>(warmup.total_steps) - steps);
  const double progress = std::min(1.0, (iteration - steps + 1) / decay_steps);
  const double height = (1 + std::cos(std::numbers::pi * progress)) / 2;
  const double floor = warmup.cosine_min_ratio;
  return std::max(0.0, floor + (1.0 - floor) * height);
}

double cycle_total(const OneCycle& cycle) {
  return static_cast<double>(cycle.first_steps) + static_cast<double>(cycle.second_steps);
}

// Position of the cycle between its bounds: 0 at both ends, 1 at the top.
double cycle_height(const OneCycle& cycle, double iteration) {
  const double first = static_cast<double>(cycle.first_steps);
  const double second = static_cast<double>(cycle.second_steps);
  const double total = cycle_total(cycle);
  const double done = iteration + 1;
  const double rising_share = first / total;
  const double x = 1.0 + done / total - std::floor(1 + done / total);
  const bool rising = x <= rising_share;
  const std::int64_t stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  if (stairs <= 0) return rising ? x / rising_share : (x - 1) / (rising_share - 1);
  // Computed from the whole number of steps: x may be below a stair by a rounding error.
  const double offset = std::fmod(done, total);
  const auto count = static_cast<double>(stairs);
  const double position =
      offset <= first ? offset * count / first : (total - offset) * count / second;
  return std::floor(position) / count;
}

double one_cycle_lr(const OneCycle& cycle, double iteration) {
  const double total = cycle_total(cycle);
  if (iteration < 0) return cycle.min_lr;
  if (iteration < total) {
    return cycle.min_lr + (cycle.max_lr - cycle.min_lr) * cycle_height(cycle, iteration);
  }
  if (cycle.decay_steps == 0 || cycle.lr_decay_rate == 0) return cycle.min_lr;
  const double intervals = (iteration - total + 1) / static_cast<double>(cycle.decay_steps);
  return cycle.min_lr / (1 + cycle.lr_decay_rate * intervals);
}

double one_cycle_momentum(const OneCycle& cycle, double iteration) {
  const double total = cycle_total(cycle);
  if (iteration < 0) return cycle.min_momentum;
  if (iteration < total) {
    const double range = cycle.max_momentum - cycle.min_momentum;
    return cycle.max_momentum - range * cycle_height(cycle, iteration);
  }
  if (cycle.decay_steps == 0 || cycle.momentum_decay_rate == 0) return cycle.max_momentum;
  const double intervals = (iteration - total + 1) / static_cast<double>(cycle.decay_steps);
  return cycle.max_momentum * (1 + cycle.momentum_decay_rate * intervals);
}

double range_test_lr(const RangeTest& test, double iteration) {
  const double intervals = (iteration + 1) / static_cast<double>(test.step_size);
  return test.min_lr * (1 + test.step_rate * (test.staircase ? std::floor(intervals) : intervals));
}

// ---- transformers' ---------------------------------------------------------------------------

// Progress from the end of the warm-up to the end of the schedule; 1 after the end.
double progress_of(const Warmup& warmup, double step) {
  const auto begin = static_cast<double>(warmup.steps);
  const auto end = static_cast<double>(warmup.total_steps);
  return std::min(1.0, (step - begin) / std::max(1.0, end - begin));
}

double linear(const Warmup& warmup, double step) {
  const auto begin = static_cast<double>(warmup.steps);
  const auto end = static_cast<double>(warmup.total_steps);
  return std::max(0.0, (end - step) / std::max(1.0, end - begin));
}

double restarting_cosine(const Schedule& schedule, double step) {
  const double progress = progress_of(schedule.warmup, step);
  if (progress >= 1) return 0;
  const double position = std::fmod(schedule.tail.cycles * progress, 1.0);
  return 0.5 * (1.0 + std::cos(std::numbers::pi * position));
}

double cosine(const Schedule& schedule, double step, double floor) {
  const double progress = progress_of(schedule.warmup, step);
  // In transformers' order of operations.
  const double angle = std::numbers::pi * schedule.tail.cycles * 2.0 * progress;
  const double height = 0.5 * (1.0 + std::cos(angle));
  return std::max(0.0, height * (1 - floor) + floor);
}

double polynomial(const Schedule& schedule, double step) {
  const Tail& tail = schedule.tail;
  const double base = schedule.base_lr;
  const auto begin = static_cast<double>(schedule.warmup.steps);
  const auto end = static_cast<double>(schedule.warmup.total_steps);
  if (step > end || end <= begin) return tail.end_lr / base;
  const double left = 1 - (step - begin) / (end - begin);
  return ((base - tail.end_lr) * std::pow(left, tail.power) + tail.end_lr) / base;
}

double inverse_sqrt(const Schedule& schedule, double step) {
  const auto scale = static_cast<double>(schedule.tail.timescale);
  return 1.0 / std::sqrt((step + (scale - static_cast<double>(schedule.warmup.steps))) / scale);
}

double stable_decay(const Schedule& schedule, double step) {
  const Tail& tail = schedule.tail;
  const auto decay_steps = static_cast<double>(tail.decay_steps);
  const double done =
      step - (static_cast<double>(schedule.warmup.steps) + static_cast<double>(tail.stable_steps));
  const double floor = tail.min_lr_ratio.value_or(0);
  if (done < 0) return 1;
  if (done >= decay_steps) return floor;
  const double progress = done / std::max(1.0, decay_steps);
  double height = 0;
  switch (tail.decay_type) {
    case DecayType::kLinear:
      height = 1.0 - progress;
      break;
    case DecayType::kCosine:
      height = 0.5 * (1.0 + std::cos(std::numbers::pi * tail.cycles * 2.0 * progress));
      break;
    case DecayType::kOneMinusSqrt:
      height = 1.0 - std::sqrt(progress);
      break;
  }
  return std::max(0.0, height * (1.0 - floor) + floor);
}

double rise(const Schedule& schedule, double step) {
  const double progress = step / static_cast<double>(schedule.warmup.steps);
  if (schedule.type != ScheduleType::kStableDecay) return progress;
  double height = progress;
  if (schedule.warmup.type == WarmupType::kCosine)
    height = 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
  if (schedule.warmup.type == WarmupType::kOneMinusSqrt) height = 1.0 - std::sqrt(1.0 - progress);
  const double floor = schedule.tail.min_lr_ratio.value_or(0);
  return std::max(0.0, height * (1.0 - floor) + floor);
}

double floor_of(const Schedule& schedule) {
  const Tail& tail = schedule.tail;
  if (!tail.min_lr) return tail.min_lr_ratio.value_or(0);
  return schedule.base_lr == 0 ? 0 : *tail.min_lr / schedule.base_lr;
}

// The factor of base_lr.
double factor(const Schedule& schedule, std::int64_t applied_step) {
  const auto step = static_cast<double>(applied_step);
  if (schedule.type == ScheduleType::kWarmupCosine) return warmup_cosine(schedule, step - 1);
  if (!is_of_transformers(schedule.type)) return 1;
  if (applied_step < schedule.warmup.steps) return rise(schedule, step);
  switch (schedule.type) {
    case ScheduleType::kLinear:
      return linear(schedule.warmup, step);
    case ScheduleType::kCosine:
      return cosine(schedule, step, 0);
    case ScheduleType::kCosineMinLr:
      return cosine(schedule, step, floor_of(schedule));
    case ScheduleType::kCosineRestarts:
      return restarting_cosine(schedule, step);
    case ScheduleType::kPolynomial:
      return schedule.base_lr == 0 ? 0 : polynomial(schedule, step);
    case ScheduleType::kInverseSqrt:
      return inverse_sqrt(schedule, step);
    case ScheduleType::kStableDecay:
      return stable_decay(schedule, step);
    default:  // constant_with_warmup
      return 1;
  }
}

// For schedules that define absolute rates.
double named_rate(const Schedule& schedule, double iteration) {
  if (schedule.type == ScheduleType::kOneCycle) return one_cycle_lr(schedule.one_cycle, iteration);
  if (schedule.type == ScheduleType::kRangeTest)
    return range_test_lr(schedule.range_test, iteration);
  return warmup_lr(schedule, iteration);
}

}  // namespace

bool is_of_transformers(ScheduleType type) { return type >= ScheduleType::kLinear; }

bool names_its_rates(ScheduleType type) {
  return type == ScheduleType::kWarmup || type == ScheduleType::kWarmupDecay ||
         type == ScheduleType::kOneCycle || type == ScheduleType::kRangeTest;
}

double learning_rate(const Schedule& schedule, std::int64_t applied_step) {
  return learning_rate(schedule, applied_step, schedule.base_lr);
}

double learning_rate(const Schedule& schedule, std::int64_t applied_step, double own_lr) {
  if (!names_its_rates(schedule.type)) return own_lr * factor(schedule, applied_step);
  const double rate = named_rate(schedule, static_cast<double>(applied_step) - 1);
  return own_lr == schedule.base_lr ? rate : rate * (own_lr / schedule.base_lr);
}

Betas betas(const Schedule& schedule, std::int64_t applied_step) {
  if (schedule.type != ScheduleType::kOneCycle || !schedule.one_cycle.cycle_momentum) {
    return schedule.base_betas;
  }
  constexpr double kBeta2 = 0.99;
  const double iteration = static_cast<double>(applied_step) - 1;
  return {one_cycle_momentum(schedule.one_cycle, iteration), kBeta2};
}

}  // namespace sluice::config
