#include "engine/config/key_value.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <system_error>
#include <type_traits>

#include "engine/config/nearest_key.h"
#include "engine/model/model_family.h"

namespace sluice::config {
namespace {

constexpr double kIntegerLimit = 0x1p63;
constexpr std::size_t kMaxListLength = 256;
constexpr const char* kEqual = "equal";

std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

Error wrong(const Key& key, const Json& value, const std::string& more = {}) {
  return Error(ErrorCode::kInvalidArgument, std::string(key.path) + " must be " + type_name(key) +
                                                ", not " + short_text(value) + more);
}

std::string number_text(double value) { return short_text(Json(value)); }

Status check_range(const Key& key, const Json& value, double number) {
  const auto [minimum, maximum] = key.range;
  if (number >= minimum && number <= maximum) return {};
  const bool below = number < minimum;
  double limit = below ? minimum : maximum;
  const std::string limit_text = limit == std::floor(limit) && std::abs(limit) < 1e15
                                     ? std::to_string(static_cast<std::int64_t>(limit))
                                     : number_text(limit);
  return Error(ErrorCode::kInvalidArgument, std::string(key.path) + " must be " +
                                                (below ? "at least " : "at most ") + limit_text +
                                                ", not " + short_text(value));
}

std::optional<double> finite_double(std::string_view text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return finite_double(value.get_ref<const std::string&>());
  return std::nullopt;
}

std::optional<std::int64_t> exact_integer(std::string_view text) {
  std::int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<std::int64_t> as_integer(const Key& key, const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) {
    return wrong(key, value, ", which is too large");
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) {
    if (const auto exact = exact_integer(value.get_ref<const std::string&>())) return *exact;
  }
  const auto number = as_number(value);
  if (!number) return wrong(key, value);
  if (*number != std::floor(*number)) return wrong(key, value, ", which has a fraction");
  if (std::abs(*number) >= kIntegerLimit) return wrong(key, value, ", which is too large");
  return static_cast<std::int64_t>(*number);
}

Status store(const Key& key, const Json& value, bool& field) {
  const auto boolean = as_boolean(value);
  if (!boolean) return wrong(key, value);
  field = *boolean;
  return {};
}

Status store(const Key& key, const Json& value, std::int64_t& field) {
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t number, as_integer(key, value));
  SLUICE_RETURN_IF_ERROR(check_range(key, value, static_cast<double>(number)));
  field = number;
  return {};
}

Status store(const Key& key, const Json& value, double& field) {
  const auto number = as_number(value);
  if (!number) return wrong(key, value);
  SLUICE_RETURN_IF_ERROR(check_range(key, value, *number));
  field = *number;
  return {};
}

Error no_choice(const Key& key, const Json& value, const std::string& word) {
  const std::string nearest = nearest_choice(word, key.choices);
  return wrong(key, value, nearest.empty() ? "" : ": did you mean \"" + nearest + "\"?");
}

std::optional<std::size_t> place_among(std::string_view choices, const std::string& word) {
  const auto all = split_choices(choices);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (lower_case(word) == lower_case(all[i])) return i;
  return std::nullopt;
}

Status store(const Key& key, const Json& value, std::optional<double>& field) {
  if (key.choices == engine::kSwitchChoices) {
    bool on = false;
    SLUICE_RETURN_IF_ERROR(store(key, value, on));
    field = on ? 1 : 0;
    return {};
  }
  if (!key.choices.empty()) {
    const std::string word = value.is_string() ? value.get<std::string>() : std::string();
    const auto place = place_among(key.choices, word);
    if (!place) return no_choice(key, value, word);
    field = static_cast<double>(*place);
    return {};
  }
  double number = 0;
  SLUICE_RETURN_IF_ERROR(store(key, value, number));
  field = number;
  return {};
}

Status store(const Key& key, const Json& value, std::string& field) {
  if (!value.is_string()) return wrong(key, value);
  const std::string word = value.get<std::string>();
  if (key.choices.empty()) {
    field = word;
    return {};
  }
  for (const std::string_view choice : split_choices(key.choices)) {
    if (lower_case(word) != lower_case(choice)) continue;
    field = choice;
    return {};
  }
  return no_choice(key, value, word);
}

Status store(const Key& key, const Json& value, std::vector<std::string>& field) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) return wrong(key, value);
  if (list.size() > kMaxListLength) {
    return wrong(key, value, ": more than " + std::to_string(kMaxListLength) + " entries");
  }
  std::vector<std::string> strings;
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) {
      return wrong(key, value, ": every entry must be a non-empty string");
    }
    strings.push_back(entry.get<std::string>());
  }
  field = std::move(strings);
  return {};
}

Status store(const Key& key, const Json& value, std::vector<double>& field) {
  if (!value.is_array()) return wrong(key, value);
  if (value.size() > kMaxListLength)
    return wrong(key, value, ": more than " + std::to_string(kMaxListLength) + " entries");
  std::vector<double> numbers;
  for (const Json& entry : value) {
    const auto number = as_number(entry);
    if (!number) return wrong(key, value);
    numbers.push_back(*number);
  }
  field = std::move(numbers);
  return {};
}

Status store(const Key& key, const Json& value, Betas& field) {
  if (!value.is_array() || value.size() != field.size()) return wrong(key, value);
  Betas numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = as_number(value[i]);
    if (!number || *number < 0 || *number >= 1) {
      return wrong(key, value, ": each must be at least 0 and below 1");
    }
    numbers.at(i) = *number;
  }
  field = numbers;
  return {};
}

Status store(const Key& key, const Json& value, std::optional<TierFractions>& field) {
  if (!value.is_object()) return wrong(key, value);
  TierFractions fractions;
  for (const auto& [tier, share] : value.items()) {
    double* slot = tier == "gpu"    ? &fractions.gpu
                   : tier == "cpu"  ? &fractions.cpu
                   : tier == "nvme" ? &fractions.nvme
                                    : nullptr;
    if (slot == nullptr) return wrong(key, value, ": there is no tier named " + printable(tier));
    const auto number = as_number(share);
    if (!number || *number < 0) return wrong(key, value, ": a share is a number from 0 to 1");
    *slot = *number;
  }
  const double sum = fractions.gpu + fractions.cpu + fractions.nvme;
  constexpr double kRounding = 1e-6;
  if (!(std::abs(sum - 1) <= kRounding)) {
    return wrong(key, value, ": the shares add up to " + number_text(sum) + " instead of 1");
  }
  field = fractions;
  return {};
}

Status store(const Key& key, const Json& value, std::optional<PathWeights>& field) {
  if (value.is_string() && lower_case(value.get<std::string>()) == kEqual) {
    field = PathWeights{};
    return {};
  }
  if (!value.is_array() || value.empty() || value.size() > kMaxListLength) {
    return wrong(key, value);
  }
  PathWeights weights;
  for (const Json& entry : value) {
    SLUICE_ASSIGN_OR_RETURN(const std::int64_t weight, as_integer(key, entry));
    SLUICE_RETURN_IF_ERROR(check_range(key, entry, static_cast<double>(weight)));
    weights.push_back(static_cast<int>(weight));
  }
  field = std::move(weights);
  return {};
}

constexpr const char* kMatch = "match";
constexpr const char* kGroupLr = "lr";
constexpr const char* kGroupDecay = "weight_decay";

// Converts `entry`; `place` is its name in messages: "optimizer.groups[1]".
Result<ParameterGroup> group_of(const Key& key, const std::string& place, const Json& entry) {
  const auto wrong_entry = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string(key.path) + " must be " + type_name(key) + ": " + place + " " + what);
  };
  if (!entry.is_object()) return wrong_entry("is " + short_text(entry));
  ParameterGroup group;
  for (const auto& [word, value] : entry.items()) {
    const std::string path = place + "." + printable(word);
    if (word == kMatch) {
      const Key patterns{.path = path, .field = Accessor<std::vector<std::string>>{}};
      SLUICE_RETURN_IF_ERROR(store(patterns, value, group.match));
    } else if (word == kGroupLr || word == kGroupDecay) {
      const Key number{.path = path, .field = Accessor<double>{}, .range = {.minimum = 0}};
      double given = 0;
      SLUICE_RETURN_IF_ERROR(store(number, value, given));
      (word == kGroupLr ? group.learning_rate : group.weight_decay) = given;
    } else {
      const std::string nearest = nearest_choice(word, "match|lr|weight_decay");
      return wrong_entry("has " + printable(word) +
                         (nearest.empty() ? "" : ": did you mean " + nearest + "?"));
    }
  }
  if (group.match.empty()) return wrong_entry("needs match, which selects its parameters");
  if (!group.learning_rate && !group.weight_decay)
    return wrong_entry("sets neither lr nor weight_decay, so it does nothing");
  return group;
}

Status store(const Key& key, const Json& value, std::vector<ParameterGroup>& field) {
  if (!value.is_array()) return wrong(key, value);
  std::vector<ParameterGroup> groups;
  std::size_t patterns = 0;
  for (const Json& entry : value) {
    const std::string place = std::string(key.path) + "[" + std::to_string(groups.size()) + "]";
    SLUICE_ASSIGN_OR_RETURN(groups.emplace_back(), group_of(key, place, entry));
    patterns += groups.back().match.size();
    if (patterns > kMaxListLength)
      return wrong(key, value, ": more than " + std::to_string(kMaxListLength) + " patterns");
  }
  field = std::move(groups);
  return {};
}

Json json_of(const ParameterGroup& group) {
  Json json = {{kMatch, group.match.size() == 1 ? Json(group.match.front()) : Json(group.match)}};
  if (group.learning_rate) json[kGroupLr] = *group.learning_rate;
  if (group.weight_decay) json[kGroupDecay] = *group.weight_decay;
  return json;
}

template <typename Enum>
Status store_choice(const Key& key, const Json& value, Enum& field) {
  std::string word;
  if (value.is_string()) word = value.get<std::string>();
  if (value.is_boolean()) word = value.get<bool>() ? "on" : "off";
  for (const std::string_view alias : split_choices(key.choice_aliases)) {
    const std::size_t equals = alias.find('=');
    if (lower_case(word) == lower_case(alias.substr(0, equals))) word = alias.substr(equals + 1);
  }
  const auto place = place_among(key.choices, word);
  if (!place) return no_choice(key, value, word);
  field = static_cast<Enum>(*place);
  return {};
}

template <typename T>
Json load(const Key& key, const T& field) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(split_choices(key.choices).at(static_cast<std::size_t>(field)));
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    if (!field || key.choices.empty()) return field ? Json(*field) : Json();
    if (key.choices == engine::kSwitchChoices) return *field != 0;
    return std::string(split_choices(key.choices).at(static_cast<std::size_t>(*field)));
  } else if constexpr (std::is_same_v<T, std::optional<TierFractions>>) {
    if (!field) return "auto";
    return Json{{"gpu", field->gpu}, {"cpu", field->cpu}, {"nvme", field->nvme}};
  } else if constexpr (std::is_same_v<T, std::optional<PathWeights>>) {
    if (!field) return "auto";
    return field->empty() ? Json(kEqual) : Json(*field);
  } else if constexpr (std::is_same_v<T, std::vector<ParameterGroup>>) {
    Json list = Json::array();
    for (const ParameterGroup& group : field) list.push_back(json_of(group));
    return list;
  } else {
    return Json(field);
  }
}

}  // namespace

std::optional<bool> as_boolean(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_string() && !value.is_number_integer()) return std::nullopt;
  const std::string text = lower_case(value.is_string() ? value.get<std::string>() : value.dump());
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

Status store_value(const Key& key, const Json& value, Config& config) {
  return std::visit(
      [&](auto accessor) -> Status {
        using A = decltype(accessor);
        if constexpr (std::is_same_v<A, std::monostate>) {
          return wrong(key, value);
        } else {
          auto& field = accessor(config);
          if constexpr (std::is_enum_v<std::remove_reference_t<decltype(field)>>) {
            return store_choice(key, value, field);
          } else {
            return store(key, value, field);
          }
        }
      },
      key.field);
}

Json load_value(const Key& key, Config& config) {
  return std::visit(
      [&](auto accessor) -> Json {
        if constexpr (std::is_same_v<decltype(accessor), std::monostate>) {
          return {};
        } else {
          return load(key, accessor(config));
        }
      },
      key.field);
}

}  // namespace sluice::config
