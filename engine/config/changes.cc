#include "engine/config/changes.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/config/derive.h"
#include "engine/config/json_text.h"
#include "engine/config/key_table.h"
#include "engine/config/key_value.h"

namespace sluice::config {
namespace {

constexpr std::array<std::string_view, 15> kElsewhere = {"zero_optimization.",
                                                         "placement.",
                                                         "communication.host_copy",
                                                         "aio.",
                                                         "budget.",
                                                         "run.",
                                                         "early_stopping.",
                                                         "samples.",
                                                         "activation_checkpointing.",
                                                         "steps_per_print",
                                                         "wall_clock_breakdown",
                                                         "flops_profiler.",
                                                         "tensorboard.",
                                                         "csv_monitor.",
                                                         "wandb."};
constexpr std::array<std::string_view, 5> kOfTheRun = {
    "run.device", "run.deterministic", "run.seed", "run.non_finite", "run.max_skipped"};

constexpr std::string_view kWarmupRatio = "scheduler.params.warmup_ratio";
constexpr std::string_view kAccumulationSteps = "gradient_accumulation_steps";

// Whether to compare lists of objects entry by entry, to show which entries differ; they must have
// equal lengths.
bool by_entry(const Json& was, const Json& is) {
  return was.is_array() && is.is_array() && was.size() == is.size() && !was.empty() &&
         was.front().is_object();
}

bool starts_with_one(std::string_view path, std::span<const std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [path](std::string_view begin) { return path.starts_with(begin); });
}

}  // namespace

std::vector<KeyChange> changed_keys(const Config& was, const Config& is) {
  Config before = was;
  Config after = is;
  std::vector<KeyChange> changes;
  for (const Key& key : all_keys()) {
    if (key.treatment != Treatment::kHonoured) continue;
    // A stored configuration has the resulting number of steps instead.
    if (key.path == kWarmupRatio) continue;
    // With another number of ranks, the same step has another number of accumulation steps per
    // rank.
    if (key.path == kAccumulationSteps && was.batch.train == is.batch.train &&
        was.batch.micro == is.batch.micro)
      continue;
    // A key without effect in either configuration does not matter.
    const bool was_read = has_effect(key, was);
    const bool is_read = has_effect(key, is);
    if (!was_read && !is_read) continue;
    const Json old_value = load_value(key, before);
    const Json new_value = load_value(key, after);
    const auto add = [&](const std::string& path, const Json& old_one, const Json& new_one) {
      if (old_one == new_one) return;
      changes.push_back({.path = path,
                         .was = short_text(old_one),
                         .is = short_text(new_one),
                         .read_by_both = was_read && is_read});
    };
    const std::string path(key.path);
    if (!by_entry(old_value, new_value)) {
      add(path, old_value, new_value);
      continue;
    }
    for (std::size_t i = 0; i < old_value.size(); ++i)
      add(path + "[" + std::to_string(i) + "]", old_value[i], new_value[i]);
  }
  return changes;
}

bool decides_results(std::string_view path) {
  return !starts_with_one(path, kElsewhere) || starts_with_one(path, kOfTheRun);
}

std::string to_text(const KeyChange& change) {
  return change.path + " was " + change.was + " and is " + change.is;
}

}  // namespace sluice::config
