// Learning rate schedules with the names, parameters and values of DeepSpeed and transformers
// (get_scheduler), as pure functions of the number of updates applied so far.
//
// `applied_step` is the number of updates before this one: 0 for the first. A skipped step applies
// no update, so it does not advance the schedule. DeepSpeed sets the rate of an update after the
// previous one. Hence its first two updates both use the schedule's first value, and OneCycle's
// first momentum is the cycle's lower bound. The schedules of transformers begin at `applied_step`
// 0, so a warm-up's first update has a rate of 0. After their end the rate stays constant, where
// transformers' cosine would rise again.
//
// Threads: any.
// Errors:  none; every field may hold any finite value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace sluice::config {

using Betas = std::array<double, 2>;

enum class ScheduleType : std::uint8_t {
  kConstant,
  kWarmup,        // WarmupLR
  kWarmupDecay,   // WarmupDecayLR
  kWarmupCosine,  // WarmupCosineLR
  kOneCycle,
  kRangeTest,  // LRRangeTest
  // from transformers:
  kLinear,
  kCosine,
  kCosineRestarts,  // cosine_with_restarts
  kCosineMinLr,     // cosine_with_min_lr
  kPolynomial,
  kConstantWarmup,  // constant_with_warmup
  kInverseSqrt,     // inverse_sqrt
  kStableDecay,     // warmup_stable_decay
};

// DeepSpeed has the first two warm-ups, warmup_stable_decay all but the first.
enum class WarmupType : std::uint8_t { kLog, kLinear, kCosine, kOneMinusSqrt };
enum class DecayType : std::uint8_t { kLinear, kCosine, kOneMinusSqrt };

struct Warmup {
  double min_lr = 0;
  double max_lr = 0;
  std::int64_t steps = 0;  // in DeepSpeed's schedules fewer than 2 count as 2
  WarmupType type = WarmupType::kLog;
  std::int64_t total_steps = 0;  // the step at which a decay ends
  double min_ratio = 0;          // cosine: initial rate of the warm-up, as a share of base_lr
  double cosine_min_ratio = 0;   // cosine: final rate of the decay, as a share of base_lr
};

// Parameters of transformers' schedules besides Warmup::steps, type and total_steps.
struct Tail {
  double cycles = 0;                   // cosine schedules: waves; cosine_with_restarts: half waves
  std::optional<double> min_lr;        // cosine_with_min_lr, replaces the share
  std::optional<double> min_lr_ratio;  // share of base_lr; unset: 0
  double end_lr = 0;                   // polynomial
  double power = 1;
  std::int64_t timescale = 1;     // inverse_sqrt
  std::int64_t stable_steps = 0;  // warmup_stable_decay
  std::int64_t decay_steps = 0;
  DecayType decay_type = DecayType::kCosine;
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
  double base_lr = 0;  // the optimizer's rate
  Betas base_betas = {};
  Warmup warmup;
  std::optional<double> warmup_ratio;  // from which Warmup::steps was derived
  Tail tail;
  OneCycle one_cycle;
  RangeTest range_test;
};

// Whether it is a schedule of transformers.
bool is_of_transformers(ScheduleType type);

double learning_rate(const Schedule& schedule, std::int64_t applied_step);

// For parameters with their own rate instead of the optimizer's, which the schedule scales the same
// way. If the schedule defines absolute rates (WarmupLR's warmup_max_lr), these are multiplied by
// own_lr / base_lr; base_lr must not be 0 then.
double learning_rate(const Schedule& schedule, std::int64_t applied_step, double own_lr);
// Whether the schedule defines absolute rates, so that base_lr does not affect them.
bool names_its_rates(ScheduleType type);

// The optimizer's, unless OneCycle cycles the momentum: then beta1 follows the cycle and beta2 is
// 0.99.
Betas betas(const Schedule& schedule, std::int64_t applied_step);

}  // namespace sluice::config
