#include "engine/model/model_family.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::engine {

double ShapeNumber::most() const {
  if (choices.empty()) return maximum;
  return static_cast<double>(std::count(choices.begin(), choices.end(), '|'));
}

std::string ShapeNumber::text(double value) const {
  const bool is_place = !choices.empty() && value >= 0 && value <= most();
  constexpr double kMostExact = 1e15;
  if (whole && value == std::floor(value) && std::abs(value) < kMostExact)
    return std::to_string(std::llround(value));
  if (!is_place) return nlohmann::json(value).dump();
  std::string_view rest = choices;
  for (double place = 0; place + 1 <= value; ++place) rest = rest.substr(rest.find('|') + 1);
  return std::string(rest.substr(0, rest.find('|')));
}

std::optional<double> ShapeNumber::place(std::string_view word) const {
  std::string lower(word);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (choices == kSwitchChoices) {
    if (lower == "on" || lower == "yes" || lower == "1") return 1;
    if (lower == "off" || lower == "no" || lower == "0") return 0;
  }
  for (double at = 0; !choices.empty() && at <= most(); ++at)
    if (text(at) == lower) return at;
  return std::nullopt;
}

}  // namespace sluice::engine
