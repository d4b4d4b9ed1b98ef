// What a schedule takes from the optimizer and the run, and which parameters it has.
#include <algorithm>

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

void derive_warmup(Derivation& derivation) {
  const Config& config = derivation.config;
  Warmup& warmup = derivation.config.schedule.warmup;
  constexpr std::string_view kMaxLr = "scheduler.params.warmup_max_lr";
  if (!derivation.given(kMaxLr)) {
    constexpr double kDecayDefault = 0.001;  // DeepSpeed's, only for the decaying form
    const bool of_decay =
        config.schedule.type == ScheduleType::kWarmupDecay && !derivation.is_auto(kMaxLr);
    warmup.max_lr = of_decay ? kDecayDefault : config.optimizer.learning_rate;
    derivation.note(kMaxLr, of_decay ? "WarmupDecayLR's default" : "optimizer.params.lr");
    if (!of_decay) derivation.kept_auto.emplace_back(kMaxLr);
  }
  constexpr std::string_view kSteps = "scheduler.params.warmup_num_steps";
  const std::int64_t run_steps = config.run.steps;
  if (derivation.is_auto(kSteps)) {
    warmup.steps =
        run_steps == kOpenSteps ? kOpenSteps : std::clamp<std::int64_t>(run_steps / 10, 1, 1000);
    derivation.note(kSteps, "a tenth of run.steps, at most 1000");
    derivation.kept_auto.emplace_back(kSteps);
  }
  constexpr std::string_view kTotal = "scheduler.params.total_num_steps";
  if (!derivation.given(kTotal)) {
    warmup.total_steps = run_steps;
    derivation.note(kTotal, "run.steps");
    derivation.kept_auto.emplace_back(kTotal);
  }
}

void derive_one_cycle(Derivation& derivation) {
  OneCycle& cycle = derivation.config.schedule.one_cycle;
  for (const std::string_view path :
       {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"}) {
    if (!derivation.given(path)) {
      derivation.reject("scheduler.type is OneCycle, so " + std::string(path) + " has to be given");
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
  return applies(key, type_of(config.schedule)) && belongs_to(key, config.model.family);
}

void derive_schedule(Derivation& derivation) {
  Schedule& schedule = derivation.config.schedule;
  schedule.base_lr = derivation.config.optimizer.learning_rate;
  schedule.base_betas = derivation.config.optimizer.betas;
  for (const Key& key : all_keys()) {
    if (applies(key, type_of(schedule))) continue;
    derivation.drop(key.path, "scheduler.type " + std::string(type_of(schedule)) +
                                  " has no such "
                                  "parameter");
  }
  derive_warmup(derivation);
  if (schedule.type == ScheduleType::kOneCycle) derive_one_cycle(derivation);
  check_schedule(derivation);
}

}  // namespace sluice::config
