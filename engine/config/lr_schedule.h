// Learning rate schedules with DeepSpeed's names, parameters and values, as pure functions of the
// number of updates applied so far.
//
// `applied_step` is the number of updates that came before this one: 0 for the first. An overflowed
// step applies nothing, so it does not move the schedule. DeepSpeed sets the rate of an update
// after the previous one; hence its first two updates both run at the schedule's first value, and
// OneCycle's first momentum is the cycle's lower bound.
//
// Threads: any.
// Errors:  none; every field may hold any finite value.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::config {

using Betas = std::array<double, 2>;

enum class ScheduleType : std::uint8_t {
  kConstant,
  kWarmup,        // WarmupLR
  kWarmupDecay,   // WarmupDecayLR
  kWarmupCosine,  // WarmupCosineLR
  kOneCycle,
  kRangeTest,  // LRRangeTest
};

enum class WarmupType : std::uint8_t { kLog, kLinear };

struct Warmup {
  double min_lr = 0;
  double max_lr = 0;
  std::int64_t steps = 0;  // fewer than 2 count as 2
  WarmupType type = WarmupType::kLog;
  std::int64_t total_steps = 0;  // decay and cosine: the step at which they end
  double min_ratio = 0;          // cosine: where the warm-up starts, as a share of base_lr
  double cosine_min_ratio = 0;   // cosine: where the decay ends, as a share of base_lr
};

struct OneCycle {
  double min_lr = 0;
  double max_lr = 0;
  double lr_decay_rate = 0;
  std::int64_t first_steps = 0;   // of the rising half
  std::int64_t second_steps = 0;  // of the falling half
  std::int64_t first_stairs = 0;  // 0: continuous
  std::int64_t second_stairs = 0;
  std::int64_t decay_steps = 0;  // 0: no decay after the cycle
  bool cycle_momentum = false;
  double min_momentum = 0;
  double max_momentum = 0;
  double momentum_decay_rate = 0;
};

struct RangeTest {
  double min_lr = 0;
  std::int64_t step_size = 1;
  double step_rate = 0;
  bool staircase = false;
};

struct Schedule {
  ScheduleType type = ScheduleType::kConstant;
  double base_lr = 0;  // the optimizer's own
  Betas base_betas = {};
  Warmup warmup;
  OneCycle one_cycle;
  RangeTest range_test;
};

double learning_rate(const Schedule& schedule, std::int64_t applied_step);

// The optimizer's own, unless OneCycle cycles the momentum: then beta1 follows it and beta2 is
// 0.99.
Betas betas(const Schedule& schedule, std::int64_t applied_step);

}  // namespace sluice::config
