// Fills a schedule's parameters from the optimizer and the run, and checks which it has.
#include <algorithm>
#include <cmath>

#include "engine/config/derive.h"

namespace sluice::config {
namespace {

constexpr std::string_view kType = "scheduler.type";

bool applies(const Key& key, std::string_view type) {
  for (const std::string_view name : split_choices(key.applies_to)) {
    if (name == type) return true;
  }
  return key.applies_to.empty();
}

std::string_view type_of(const Schedule& schedule) {
  return split_choices(find_key(kType)->choices).at(static_cast<std::size_t>(schedule.type));
}

constexpr std::string_view kWarmupSteps = "scheduler.params.warmup_num_steps";
constexpr std::string_view kWarmupRatio = "scheduler.params.warmup_ratio";

void derive_total(Derivation& derivation) {
  constexpr std::string_view kTotal = "scheduler.params.total_num_steps";
  if (derivation.given(kTotal)) return;
  derivation.config.schedule.warmup.total_steps = derivation.config.run.steps;
  derivation.note(kTotal, "run.steps");
  derivation.kept_auto.emplace_back(kTotal);
}

// Whether warmup_ratio determines the length of the warm-up. The later source decides. Within one
// source, a warm-up of 0 steps defers to the ratio, as in Hugging Face's Trainer.
bool warms_by_ratio(Derivation& derivation) {
  const int ratio = derivation.rank(kWarmupRatio);
  const int steps = derivation.rank(kWarmupSteps);
  if (ratio < 0 || steps < 0) return ratio >= 0;
  Schedule& schedule = derivation.config.schedule;
  if (steps > ratio) {
    schedule.warmup_ratio.reset();
    derivation.drop(kWarmupRatio, "a later source gives warmup_num_steps");
    return false;
  }
  if (steps == ratio && schedule.warmup.steps != 0) {
    derivation.reject(
        std::string(kWarmupSteps) +
        " and warmup_ratio both set the length of the warm-up: leave one of them out");
    return false;
  }
  derivation.drop(kWarmupSteps, "set by warmup_ratio");
  return true;
}

void derive_warmup_steps(Derivation& derivation) {
  Schedule& schedule = derivation.config.schedule;
  Warmup& warmup = schedule.warmup;
  if (warms_by_ratio(derivation)) {
    const double share = *schedule.warmup_ratio;
    warmup.steps =
        warmup.total_steps == kOpenSteps
            ? kOpenSteps
            : static_cast<std::int64_t>(std::ceil(static_cast<double>(warmup.total_steps) * share));
    derivation.note(kWarmupSteps, "warmup_ratio " + short_text(Json(share)) + " of all steps");
    derivation.kept_auto.emplace_back(kWarmupSteps);
  } else if (derivation.is_auto(kWarmupSteps)) {
    const std::int64_t run_steps = derivation.config.run.steps;
    warmup.steps =
        run_steps == kOpenSteps ? kOpenSteps : std::clamp<std::int64_t>(run_steps / 10, 1, 1000);
    derivation.note(kWarmupSteps, "a tenth of run.steps, at most 1000");
    derivation.kept_auto.emplace_back(kWarmupSteps);
  } else if (!derivation.given(kWarmupSteps) && is_of_transformers(schedule.type)) {
    warmup.steps = 0;
    derivation.note(kWarmupSteps, "Hugging Face's default");
  }
}

void derive_warmup_type(Derivation& derivation) {
  constexpr std::string_view kForm = "scheduler.params.warmup_type";
  const Key& key = *find_key(kForm);
  Schedule& schedule = derivation.config.schedule;
  WarmupType& type = schedule.warmup.type;
  if (!applies(key, type_of(schedule))) return;
  const bool has_log = schedule.type != ScheduleType::kStableDecay;
  if (!has_log && !derivation.given(kForm)) {
    type = WarmupType::kLinear;
    derivation.note(kForm, "Hugging Face's default");
  }
  const bool is_of_deepspeed = type == WarmupType::kLog || type == WarmupType::kLinear;
  if (has_log ? is_of_deepspeed : type != WarmupType::kLog) return;
  derivation.reject(std::string(kForm) + " is " +
                    std::string(split_choices(key.choices).at(static_cast<std::size_t>(type))) +
                    ", and scheduler.type " + std::string(type_of(schedule)) + " has " +
                    (has_log ? "log and linear" : "linear, cosine and 1-sqrt"));
}

void derive_warmup(Derivation& derivation) {
  const Config& config = derivation.config;
  Warmup& warmup = derivation.config.schedule.warmup;
  constexpr std::string_view kMaxLr = "scheduler.params.warmup_max_lr";
  if (!derivation.given(kMaxLr)) {
    constexpr double kDecayDefault = 0.001;  // DeepSpeed's, only for WarmupDecayLR
    const bool of_decay =
        config.schedule.type == ScheduleType::kWarmupDecay && !derivation.is_auto(kMaxLr);
    warmup.max_lr = of_decay ? kDecayDefault : config.optimizer.learning_rate;
    derivation.note(kMaxLr, of_decay ? "WarmupDecayLR's default" : "optimizer.params.lr");
    if (!of_decay) derivation.kept_auto.emplace_back(kMaxLr);
  }
  derive_total(derivation);
  derive_warmup_steps(derivation);
  derive_warmup_type(derivation);
}

// Derives missing step counts of warmup_stable_decay: the decay is a tenth, and the rest is stable.
void derive_stable_decay(Derivation& derivation) {
  Tail& tail = derivation.config.schedule.tail;
  const Warmup& warmup = derivation.config.schedule.warmup;
  const bool is_open = warmup.total_steps == kOpenSteps || warmup.steps == kOpenSteps;
  const std::int64_t after_warmup = std::max<std::int64_t>(warmup.total_steps - warmup.steps, 0);
  constexpr std::string_view kDecay = "scheduler.params.num_decay_steps";
  if (!derivation.given(kDecay)) {
    const std::int64_t tenth = std::max<std::int64_t>(warmup.total_steps / 10, 1);
    tail.decay_steps = is_open ? kOpenSteps : std::min(tenth, after_warmup);
    derivation.note(kDecay, "a tenth of total_num_steps");
    derivation.kept_auto.emplace_back(kDecay);
  }
  constexpr std::string_view kStable = "scheduler.params.num_stable_steps";
  if (!derivation.given(kStable)) {
    tail.stable_steps =
        is_open ? kOpenSteps : std::max<std::int64_t>(after_warmup - tail.decay_steps, 0);
    derivation.note(kStable, "total_num_steps less warm-up and decay");
    derivation.kept_auto.emplace_back(kStable);
  }
}

// cosine_with_min_lr needs exactly one of two keys; the later source decides.
void derive_min_lr(Derivation& derivation) {
  constexpr std::string_view kLr = "scheduler.params.min_lr";
  constexpr std::string_view kRatio = "scheduler.params.min_lr_ratio";
  const int lr = derivation.rank(kLr);
  const int ratio = derivation.rank(kRatio);
  if (lr == ratio) {
    return derivation.reject(lr < 0 ? "scheduler.type is cosine_with_min_lr, so "
                                      "scheduler.params.min_lr or min_lr_rate must be given"
                                    : "scheduler.params.min_lr and min_lr_rate both set the end of "
                                      "the decay: leave one of them out");
  }
  if (lr < 0 || ratio < 0) return;
  Tail& tail = derivation.config.schedule.tail;
  if (lr > ratio) {
    tail.min_lr_ratio.reset();
    derivation.drop(kRatio, "a later source gives min_lr");
  } else {
    tail.min_lr.reset();
    derivation.drop(kLr, "a later source gives min_lr_rate");
  }
}

void derive_tail(Derivation& derivation) {
  const Schedule& schedule = derivation.config.schedule;
  Tail& tail = derivation.config.schedule.tail;
  constexpr std::string_view kCycles = "scheduler.params.num_cycles";
  if (!derivation.given(kCycles)) {
    tail.cycles = schedule.type == ScheduleType::kCosineRestarts ? 1 : 0.5;
    derivation.note(kCycles, "Hugging Face's default");
  }
  constexpr std::string_view kScale = "scheduler.params.timescale";
  if (!derivation.given(kScale)) {
    constexpr std::int64_t kUsual = 10'000;
    const std::int64_t steps = schedule.warmup.steps;
    tail.timescale = steps == 0 ? kUsual : steps;
    derivation.note(kScale, steps == 0 ? "Hugging Face's without a warm-up" : "warmup_num_steps");
    derivation.kept_auto.emplace_back(kScale);
  }
  if (schedule.type == ScheduleType::kStableDecay) derive_stable_decay(derivation);
  if (schedule.type == ScheduleType::kCosineMinLr) derive_min_lr(derivation);
}

void derive_one_cycle(Derivation& derivation) {
  OneCycle& cycle = derivation.config.schedule.one_cycle;
  for (const std::string_view path :
       {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"}) {
    if (!derivation.given(path)) {
      derivation.reject("scheduler.type is OneCycle, so " + std::string(path) + " must be given");
    }
  }
  constexpr std::string_view kSecond = "scheduler.params.cycle_second_step_size";
  if (!derivation.given(kSecond)) {
    cycle.second_steps = cycle.first_steps;
    derivation.note(kSecond, "cycle_first_step_size");
    derivation.kept_auto.emplace_back(kSecond);
  }
  constexpr std::string_view kStairs = "scheduler.params.cycle_second_stair_count";
  if (!derivation.given(kStairs)) {
    cycle.second_stairs = cycle.first_stairs;
    derivation.note(kStairs, "cycle_first_stair_count");
    derivation.kept_auto.emplace_back(kStairs);
  }
}

}  // namespace

bool has_effect(const Key& key, const Config& config) {
  return applies(key, type_of(config.schedule)) && belongs_to(key, config.model.family) &&
         matters_to_adapters(key, config);
}

void derive_schedule(Derivation& derivation) {
  Schedule& schedule = derivation.config.schedule;
  schedule.base_lr = derivation.config.optimizer.learning_rate;
  schedule.base_betas = derivation.config.optimizer.betas;
  for (const Key& key : all_keys()) {
    if (applies(key, type_of(schedule))) continue;
    derivation.drop(key.path,
                    "scheduler.type " + std::string(type_of(schedule)) + " has no such parameter",
                    true);
  }
  derive_warmup(derivation);
  derive_tail(derivation);
  if (schedule.type == ScheduleType::kOneCycle) derive_one_cycle(derivation);
  check_schedule(derivation);
}

}  // namespace sluice::config
