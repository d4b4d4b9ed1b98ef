// What recipe.lora leaves open, and whether there can be such adapters.
#include <algorithm>
#include <string>

#include "engine/config/derive.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

constexpr std::string_view kRank = "recipe.lora.rank";
constexpr std::string_view kAlpha = "recipe.lora.alpha";
constexpr std::string_view kTargets = "recipe.lora.targets";
// PEFT's word for every product.
constexpr std::string_view kAllLinear = "all-linear";

std::string unknown_target(const std::string& target, std::span<const std::string_view> known) {
  std::string text =
      "recipe.lora.targets names " + target + ", which can have no adapter: there are ";
  for (const std::string_view name : known) {
    text += name;
    text += ", ";
  }
  return text + "or \"all-linear\"";
}

// In the model's order, each once; a name that is none is refused.
void settle_targets(Derivation& derivation, std::span<const std::string_view> known) {
  std::vector<std::string>& targets = derivation.config.lora.targets;
  const bool all = targets.empty() || (targets.size() == 1 && targets.front() == kAllLinear);
  if (targets.empty() && derivation.given(kTargets))
    derivation.reject("recipe.lora.targets is empty: leave it out for every product, or name some");
  for (const std::string& target : targets) {
    if (target == kAllLinear && !all) {
      derivation.reject("recipe.lora.targets has \"all-linear\" beside others: it stands alone");
      continue;
    }
    if (all || std::find(known.begin(), known.end(), target) != known.end()) continue;
    derivation.reject(unknown_target(target, known));
  }
  std::vector<std::string> settled;
  for (const std::string_view name : known)
    if (all || std::find(targets.begin(), targets.end(), name) != targets.end())
      settled.emplace_back(name);
  if (!derivation.given(kTargets)) derivation.note(kTargets, "every product of the model's blocks");
  targets = std::move(settled);
}

}  // namespace

void derive_lora(Derivation& derivation) {
  Lora& lora = derivation.config.lora;
  if (lora.rank == 0) {
    for (const Key& asked : all_keys()) {
      if (asked.path.starts_with("recipe.lora.") && !derivation.given(kRank) &&
          derivation.given(asked.path))
        return derivation.reject(std::string(asked.path) +
                                 " is given without recipe.lora.rank, without which the model "
                                 "itself would be trained: give the adapters a rank, or leave "
                                 "recipe.lora out");
    }
    const char* const reason = "recipe.lora.rank is 0: the model itself is trained";
    for (const Key& key : all_keys())
      if (key.path.starts_with("recipe.lora.") && key.path != kRank)
        derivation.drop(key.path, reason);
    lora = {};
    return;
  }
  if (!derivation.given(kAlpha)) {
    lora.alpha = 2 * static_cast<double>(lora.rank);
    derivation.note(kAlpha, "twice recipe.lora.rank");
  }
  const engine::ModelFamily* family = engine::find_family(derivation.config.model.family);
  if (family == nullptr) return;
  if (family->adapter_targets().empty()) {
    derivation.reject("recipe.lora.rank is " + std::to_string(lora.rank) +
                      ", and models of the family " + std::string(family->name()) +
                      " are trained whole: leave recipe.lora out, or train another model");
    return;
  }
  settle_targets(derivation, family->adapter_targets());
  if (lora.base_bits != 8 && lora.base_bits != 16)
    derivation.reject("recipe.lora.base_bits is " + std::to_string(lora.base_bits) +
                      ": it is 16, or 8");
  if (derivation.config.model.init_from.empty())
    derivation.note(kRank, "beside a model of random weights: name one by model.path");
}

bool matters_to_adapters(const Key& key, const Config& config) {
  return config.lora.rank > 0 || key.path == kRank || !key.path.starts_with("recipe.lora.");
}

engine::LoraRecipe Lora::recipe() const {
  return {.rank = rank,
          .alpha = alpha,
          .rank_stabilised = rank_stabilised,
          .dropout = dropout,
          .base_bits = base_bits,
          .targets = targets};
}

}  // namespace sluice::config
