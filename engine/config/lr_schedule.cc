#include "engine/config/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::config {
namespace {

// The share of the warm-up that is done, or nothing when it is over. `iteration` is >= 0.
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

double cosine_lr(const Schedule& schedule, double iteration) {
  if (iteration < 0) return 0;
  const Warmup& warmup = schedule.warmup;
  const double steps = warmup_steps(warmup);
  if (iteration < steps) {
    const double share = warmup_share(warmup, steps, iteration);
    return schedule.base_lr * (warmup.min_ratio + share * (1.0 - warmup.min_ratio));
  }
  const double decay_steps = std::max(1.0, static_cast<double>(warmup.total_steps) - steps);
  const double progress = std::min(1.0, (iteration - steps + 1) / decay_steps);
  const double height = (1 + std::cos(std::numbers::pi * progress)) / 2;
  const double floor = warmup.cosine_min_ratio;
  return schedule.base_lr * std::max(0.0, floor + (1.0 - floor) * height);
}

double cycle_total(const OneCycle& cycle) {
  return static_cast<double>(cycle.first_steps) + static_cast<double>(cycle.second_steps);
}

// How far between its bounds the cycle is: 0 at both ends, 1 at the top.
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
  // From the whole number of steps: x may be a rounding error below a stair.
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

}  // namespace

double learning_rate(const Schedule& schedule, std::int64_t applied_step) {
  const double iteration = static_cast<double>(applied_step) - 1;
  switch (schedule.type) {
    case ScheduleType::kConstant:
      break;
    case ScheduleType::kWarmup:
    case ScheduleType::kWarmupDecay:
      return warmup_lr(schedule, iteration);
    case ScheduleType::kWarmupCosine:
      return cosine_lr(schedule, iteration);
    case ScheduleType::kOneCycle:
      return one_cycle_lr(schedule.one_cycle, iteration);
    case ScheduleType::kRangeTest:
      return range_test_lr(schedule.range_test, iteration);
  }
  return schedule.base_lr;
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
