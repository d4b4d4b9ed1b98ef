#include "engine/config/kept_keys.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "engine/config/json_text.h"
#include "engine/config/key_value.h"
#include "offload/sum_order.h"

namespace sluice::config {
namespace {

constexpr const char* kKeepLast = "run.keep_last";
constexpr const char* kKeepBest = "run.keep_best";

bool is_given(const Resolved& resolved, std::string_view path) {
  return std::any_of(resolved.reports.begin(), resolved.reports.end(),
                     [&](const KeyReport& report) { return report.path == path && report.given; });
}

// Sets the key's field of `had` to the stored value; false if there is none.
bool read_key(const std::string& stored, std::string_view path, Config& had) {
  const auto json = parse_json("the checkpoint", stored);
  const Key* const key = find_key(path);
  if (!json.ok() || key == nullptr) return false;
  std::string pointer = "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const Json::json_pointer at(pointer);
  return json->contains(at) && store_value(*key, json->at(at), had).ok();
}

const char* name_of(DecayedParameters decayed) {
  return decayed == DecayedParameters::kAll ? "all" : "matrices";
}

std::string absolute_path(const std::string& path, const std::string& here) {
  return (std::filesystem::path(here) / path).lexically_normal().string();
}

}  // namespace

std::string keep_decayed_parameters(const std::string& stored, Resolved& resolved) {
  Config before;
  const DecayedParameters had = read_key(stored, kDecayedKey, before)
                                    ? before.optimizer.decayed_parameters
                                    : DecayedParameters::kAll;
  Optimizer& optimizer = resolved.config.optimizer;
  if (optimizer.decayed_parameters == had) return {};
  const std::string now = name_of(optimizer.decayed_parameters);
  const bool matters = optimizer.weight_decay > 0;
  if (is_given(resolved, kDecayedKey)) {
    return matters ? std::string(kDecayedKey) + " was " + name_of(had) + ", and is " + now +
                         " from now on"
                   : "";
  }
  optimizer.decayed_parameters = had;
  if (!matters) return {};
  return std::string("weight decay still applies to ") +
         (had == DecayedParameters::kAll ? "all parameters" : "matrices only") +
         ", as in this run so far; to change that: --set " + kDecayedKey + "=" + now;
}

std::string keep_lanes(const KeptLanes& had, Resolved& resolved) {
  Run& run = resolved.config.run;
  const std::int64_t world = resolved.config.world_size;
  const KeptLanes now{.lanes = is_given(resolved, "run.lanes") ? run.lanes : had.lanes,
                      .rounds = is_given(resolved, "run.rounds") ? run.rounds : had.rounds};
  const std::int64_t micro_batches =
      resolved.config.batch.accumulation * resolved.config.world_size;
  if (!offload::SumOrder::divides(
          {.micro_batches = micro_batches, .lanes = now.lanes, .rounds = now.rounds}))
    return {};
  if (now.lanes % world != 0) {
    return "gradients were accumulated in " + std::to_string(had.lanes) +
           (had.lanes == 1 ? " lane" : " lanes") + ", which " + std::to_string(world) +
           " ranks cannot share; from now on run.lanes is " + std::to_string(run.lanes);
  }
  run.lanes = now.lanes;
  run.rounds = now.rounds;
  return {};
}

std::string keep_checkpoint_in_place(Resolved& resolved) {
  Run& run = resolved.config.run;
  if (std::exchange(run.checkpoint_in_place, true)) return {};
  run.keep_last_checkpoints = 1;
  run.keep_best = false;
  run.checkpoint_background = Tristate::kAuto;
  return "checkpoints stay in place, as in this run so far; to change that, resume what "
         "sluice copy makes of the checkpoint";
}

std::string keep_number_of_checkpoints(const std::string& stored, Resolved& resolved) {
  if (resolved.config.run.checkpoint_in_place) return {};
  Config before;
  std::int64_t& now = resolved.config.run.keep_last_checkpoints;
  if (is_given(resolved, kKeepLast) || !read_key(stored, kKeepLast, before)) return {};
  const std::int64_t had = before.run.keep_last_checkpoints;
  if (had == now) return {};
  const std::string of_new_runs = std::to_string(now);
  now = had;
  return (had == 0 ? std::string("all checkpoints are kept")
                   : "the newest " + std::to_string(had) +
                         (had == 1 ? " checkpoint is kept" : " checkpoints are kept")) +
         ", as in this run so far; to change that: --set " + kKeepLast + "=" + of_new_runs;
}

std::string keep_best_checkpoint(const std::string& stored, Resolved& resolved) {
  Config before;
  bool& now = resolved.config.run.keep_best;
  if (resolved.config.run.checkpoint_in_place) return {};
  if (now || is_given(resolved, kKeepBest) || !read_key(stored, kKeepBest, before)) return {};
  now = before.run.keep_best;
  return now ? "the checkpoint with the lowest validation loss is kept, as in this run so far; to "
               "change that: --set " +
                   std::string(kKeepBest) + "=false"
             : "";
}

std::string keep_origin(const std::string& stored, const std::string& here, Resolved& resolved) {
  Config before;
  Config& config = resolved.config;
  struct Origin {
    const char* key;
    std::string& now;
    const std::string& had;
  };
  const std::array<Origin, 2> of_model = {
      Origin{"model.path", config.model.path, before.model.path},
      Origin{"model.init_from", config.model.init_from, before.model.init_from}};
  const std::array<Origin, 1> of_adapters = {
      Origin{"recipe.lora.adapter", config.lora.adapter, before.lora.adapter}};
  std::string said;
  for (const Origin& origin : config.lora.rank > 0 ? std::span<const Origin>(of_adapters)
                                                   : std::span<const Origin>(of_model)) {
    if (!read_key(stored, origin.key, before) || origin.had == origin.now) continue;
    const bool names_other =
        !origin.now.empty() && absolute_path(origin.now, here) != absolute_path(origin.had, here);
    const std::string now = std::exchange(origin.now, origin.had);
    if (names_other && is_given(resolved, origin.key))
      said += (said.empty() ? "" : "; ") + std::string(origin.key) + " " + now +
              " has no effect: the weights come from the checkpoint" +
              (origin.had.empty() ? "" : ", and that run started from " + origin.had);
  }
  return said;
}

}  // namespace sluice::config
