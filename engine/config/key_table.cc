#include "engine/config/key_table.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>
#include <unordered_map>

#include "aio/check.h"
#include "aio/text.h"
#include "engine/config/key_sections.h"
#include "engine/model/model_family.h"

namespace sluice::config {
namespace {

std::vector<Key> join_sections() {
  std::vector<Key> keys;
  for (const auto& section : {training_keys(), scheduler_keys(), zero_keys(), io_keys(),
                              model_keys(), run_keys(), foreign_keys()}) {
    keys.insert(keys.end(), section.begin(), section.end());
  }
  return keys;
}

std::string_view source_text(KeySource source) {
  switch (source) {
    case KeySource::kDeepSpeed:
      return "DeepSpeed's";
    case KeySource::kOlder:
      return "an older key of DeepSpeed";
    case KeySource::kHuggingFace:
      return "Hugging Face's";
    case KeySource::kSluice:
      return "Sluice's own";
  }
  return "";
}

std::string join_choices(std::string_view choices, std::string_view quote) {
  const auto parts = split_choices(choices);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " or " : ", ";
    text += quote;
    text += parts[i];
    text += quote;
  }
  return text;
}

std::string choices_text(std::string_view choices) { return join_choices(choices, "\""); }

std::string limit_text(double limit) { return significant(limit, 10); }

std::string range_text(const Range& range) {
  const bool has_minimum = std::isfinite(range.minimum);
  const bool has_maximum = std::isfinite(range.maximum);
  if (has_minimum && has_maximum) {
    return ", " + limit_text(range.minimum) + " to " + limit_text(range.maximum);
  }
  if (has_minimum) return ", at least " + limit_text(range.minimum);
  return has_maximum ? ", at most " + limit_text(range.maximum) : std::string();
}

std::string describe_honoured(const Key& key) {
  std::string text = type_name(key) + range_text(key.range);
  if (!key.unit.empty()) text += ", in " + std::string(key.unit);
  text += "; default ";
  text += key.default_json == "null" ? "unset" : key.default_json;
  text += "; ";
  text += source_text(key.source);
  text += "\n    " + std::string(key.meaning);
  if (!key.auto_rule.empty()) text += "\n    \"auto\": " + std::string(key.auto_rule);
  if (!key.applies_to.empty()) {
    text += "\n    used by the schedulers " + choices_text(key.applies_to);
  }
  if (!key.families.empty())
    text += "\n    for models of the family " + choices_in_words(key.families);
  return text;
}

std::string describe_key(const Key& key) {
  std::string text = std::string(key.path) + "\n    ";
  switch (key.treatment) {
    case Treatment::kHonoured:
      return text + describe_honoured(key);
    case Treatment::kAlias:
      text += (key.is_old_name ? "the old name of " : "the same as ") + std::string(key.alias_of);
      if (!key.share_of.empty()) text += "; a value below 1 is " + std::string(key.share_of);
      return text + "; " + std::string(source_text(key.source));
    case Treatment::kIgnored:
      text += "ignored";
      break;
    case Treatment::kRefusedIfTrue:
      text += "refused when true";
      break;
    case Treatment::kRefused:
      text += "refused";
      break;
  }
  return text + "; " + std::string(source_text(key.source)) + "\n    " + std::string(key.reason);
}

}  // namespace

std::span<const Key> all_keys() {
  static const std::vector<Key> keys = join_sections();
  return keys;
}

const Key* find_key(std::string_view path) {
  static const auto index = [] {
    std::unordered_map<std::string_view, const Key*> by_path;
    for (const Key& key : all_keys()) {
      const bool is_new = by_path.emplace(key.path, &key).second;
      SLUICE_CHECK(is_new, ("two rows for the key " + std::string(key.path)).c_str());
    }
    return by_path;
  }();
  const auto found = index.find(path);
  return found == index.end() ? nullptr : found->second;
}

bool belongs_to(const Key& key, std::string_view family) {
  const auto families = split_choices(key.families);
  return families.empty() || std::find(families.begin(), families.end(), family) != families.end();
}

bool is_section(std::string_view path) {
  static const auto sections = [] {
    std::set<std::string_view> prefixes;
    for (const Key& key : all_keys()) {
      for (std::size_t dot = key.path.find('.'); dot != std::string_view::npos;
           dot = key.path.find('.', dot + 1)) {
        prefixes.insert(key.path.substr(0, dot));
      }
    }
    return prefixes;
  }();
  return sections.contains(path);
}

std::string type_name(const Key& key) {
  if (key.choices == engine::kSwitchChoices) return "true or false";
  if (!key.choices.empty()) return choices_text(key.choices);
  return std::visit(
      [](auto accessor) -> std::string {
        using A = decltype(accessor);
        if constexpr (std::is_same_v<A, Accessor<bool>>) return "true or false";
        if constexpr (std::is_same_v<A, Accessor<std::int64_t>>) return "a whole number";
        if constexpr (std::is_same_v<A, Accessor<double>>) return "a number";
        if constexpr (std::is_same_v<A, FamilyNumber>) return "a number";
        if constexpr (std::is_same_v<A, FamilyList>) return "a list of numbers";
        if constexpr (std::is_same_v<A, Accessor<std::optional<double>>>) return "a number";
        if constexpr (std::is_same_v<A, Accessor<std::string>>) return "a string";
        if constexpr (std::is_same_v<A, Accessor<Betas>>) return "a list of two numbers";
        if constexpr (std::is_same_v<A, Accessor<std::vector<std::string>>>) {
          return "a string or a list of strings";
        }
        if constexpr (std::is_same_v<A, Accessor<std::optional<TierFractions>>>) {
          return "an object with the numbers gpu, cpu and nvme";
        }
        if constexpr (std::is_same_v<A, Accessor<std::optional<PathWeights>>>) {
          return "\"equal\" or a list of whole numbers, one for each of budget.nvme_paths";
        }
        if constexpr (std::is_same_v<A, Accessor<std::vector<ParameterGroup>>>) {
          return "a list of objects with match, and lr or weight_decay or both";
        }
        return "anything";
      },
      key.field);
}

std::vector<std::string_view> split_choices(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const std::size_t bar = std::min(list.find('|'), list.size());
    parts.push_back(list.substr(0, bar));
    list.remove_prefix(std::min(bar + 1, list.size()));
  }
  return parts;
}

std::string choices_in_words(std::string_view list) { return join_choices(list, ""); }

std::string describe_keys() {
  std::string text;
  for (const Key& key : all_keys()) text += describe_key(key) + "\n\n";
  return text;
}

}  // namespace sluice::config
