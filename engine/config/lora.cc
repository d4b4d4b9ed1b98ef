// Derives the missing values of recipe.lora, and checks that such adapters are possible.
#include <algorithm>
#include <array>
#include <string>

#include "engine/config/derive.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

constexpr std::string_view kRank = "recipe.lora.rank";
constexpr std::string_view kAlpha = "recipe.lora.alpha";
constexpr std::string_view kTargets = "recipe.lora.targets";
constexpr std::string_view kDropout = "recipe.lora.dropout";
constexpr std::string_view kStabilised = "recipe.lora.rank_stabilised";
constexpr std::string_view kAdapter = "recipe.lora.adapter";
// PEFT's name for all products.
constexpr std::string_view kAllLinear = "all-linear";

std::string unknown_target(const std::string& target, std::span<const std::string_view> known,
                           bool has_experts) {
  std::string text = "recipe.lora.targets names " + target + ", which cannot have an adapter";
  text += has_experts ? " of its own in a model with experts, which are one target" : "";
  text += ": choose from ";
  for (const std::string_view name : known) {
    text += name;
    text += ", ";
  }
  return text + "or \"all-linear\"";
}

// Puts targets in the model's order, without duplicates; unknown names are refused.
void settle_targets(Derivation& derivation, std::span<const std::string_view> known) {
  std::vector<std::string>& targets = derivation.config.lora.targets;
  const auto& numbers = derivation.config.model.numbers;
  const auto experts = numbers.find("experts");
  const bool has_experts = experts != numbers.end() && experts->second.value_or(0) > 0;
  const bool all = targets.empty() || (targets.size() == 1 && targets.front() == kAllLinear);
  if (targets.empty() && derivation.given(kTargets))
    derivation.reject(
        "recipe.lora.targets is empty: leave it out for all linear layers, or name some");
  for (const std::string& target : targets) {
    if (target == kAllLinear && !all) {
      derivation.reject(
          "recipe.lora.targets has \"all-linear\" and other entries: \"all-linear\" must be the "
          "only one");
      continue;
    }
    if (all || std::find(known.begin(), known.end(), target) != known.end()) continue;
    derivation.reject(unknown_target(target, known, has_experts));
  }
  std::vector<std::string> resolved;
  for (const std::string_view name : known)
    if ((all && name != engine::kExpertsTarget) ||
        std::find(targets.begin(), targets.end(), name) != targets.end())
      resolved.emplace_back(name);
  if (all && !derivation.given(kTargets))
    derivation.note(kTargets, has_experts ? "every linear layer outside the experts of a router"
                                          : "every linear layer of the model's blocks");
  targets = std::move(resolved);
}

// Values that are not given are those of the adapter that training continues.
void fill_from_adapter(Derivation& derivation) {
  Lora& lora = derivation.config.lora;
  const bool has_rank = derivation.given(kRank);
  if (lora.adapter.empty() || (has_rank && lora.rank == 0)) return;
  const auto is_open = [&](std::string_view key) { return !derivation.given(key); };
  constexpr std::array<std::string_view, 5> kOfAdapter = {kRank, kAlpha, kStabilised, kDropout,
                                                          kTargets};
  if (std::none_of(kOfAdapter.begin(), kOfAdapter.end(), is_open)) return;
  if (!derivation.facts.adapter) {
    derivation.missing_facts.adapter = true;
    return;
  }
  const engine::LoraRecipe& there = *derivation.facts.adapter;
  const auto fill = [&](std::string_view key, auto& number, const auto& of_adapter) {
    if (!is_open(key)) return;
    number = of_adapter;
    derivation.note(key, std::string(kAdapter));
  };
  fill(kRank, lora.rank, there.rank);
  fill(kAlpha, lora.alpha, there.alpha);
  fill(kStabilised, lora.rank_stabilised, there.rank_stabilised);
  fill(kDropout, lora.dropout, there.dropout);
  if (!there.targets.empty()) fill(kTargets, lora.targets, there.targets);
}

}  // namespace

void derive_lora(Derivation& derivation) {
  Lora& lora = derivation.config.lora;
  fill_from_adapter(derivation);
  if (lora.rank == 0 && derivation.missing_facts.adapter) return;
  if (lora.rank == 0) {
    for (const Key& asked : all_keys()) {
      if (asked.path.starts_with("recipe.lora.") && !derivation.given(kRank) &&
          derivation.given(asked.path))
        return derivation.reject(std::string(asked.path) +
                                 " is given without recipe.lora.rank, so the model itself would be "
                                 "trained: set recipe.lora.rank, or leave recipe.lora out");
    }
    const char* const reason = "recipe.lora.rank is 0: the model itself is trained";
    for (const Key& key : all_keys())
      if (key.path.starts_with("recipe.lora.") && key.path != kRank)
        derivation.drop(key.path, reason);
    lora = {};
    return;
  }
  const bool has_alpha = derivation.given(kAlpha) || derivation.notes().contains(kAlpha);
  if (!has_alpha) {
    lora.alpha = 2 * static_cast<double>(lora.rank);
    derivation.note(kAlpha, "twice recipe.lora.rank");
  }
  const engine::ModelFamily* family = engine::find_family(derivation.config.model.family);
  if (family == nullptr || derivation.model_refused) return;
  const auto known = family->adapter_targets(derivation.config.model.shape());
  if (known.empty()) {
    derivation.reject("recipe.lora.rank is " + std::to_string(lora.rank) +
                      ", but models of the family " + std::string(family->name()) +
                      " cannot have adapters: leave recipe.lora out, or train another model");
    return;
  }
  settle_targets(derivation, known);
  if (lora.recipe().adapts_experts() && lora.dropout > 0)
    derivation.reject(
        "recipe.lora.dropout is given, but adapters of experts have none, as in PEFT: set it to 0, "
        "or leave \"experts\" out of recipe.lora.targets");
  if (engine::LoraRecipe bits = {.base_bits = lora.base_bits}; !bits.has_base_codec())
    derivation.reject("recipe.lora.base_bits is " + std::to_string(lora.base_bits) +
                      ": it must be 16, 8 or 4");
  else if (!lora.recipe().has_base_codec())
    derivation.reject("recipe.lora.double_quant is true, and recipe.lora.base_bits is " +
                      std::to_string(lora.base_bits) + ": set base_bits to 4");
  if (derivation.config.model.init_from.empty())
    derivation.note(kRank, "the base model has random weights: name one with model.path");
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
          .double_quant = double_quant,
          .targets = targets};
}

}  // namespace sluice::config
