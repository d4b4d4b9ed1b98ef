// What a search may vary: dimensions, the choices of each, and points that take one of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools {

// A key of the configuration and its value as JSON.
struct KeyValue {
  std::string key;
  std::string json;
};

// Shifts optimizer state from what the plan chose for the rest of a point: that depends on the
// rest, so it is worked out point by point (shifted_fractions.h).
enum class Shift : std::uint8_t {
  kNone,
  kToGpu,  // from RAM, or from the drives where RAM has none
  kToCpu,  // from the drives
};

struct Choice {
  std::string label;
  std::vector<KeyValue> keys;  // empty: as the user's configuration has it
  double shift = 0;            // share of the state, of a dimension that shifts
};

struct Dimension {
  std::string name;
  std::vector<Choice> choices;
  int start = 0;        // the choice that the configuration, or its plan, made
  bool ordered = true;  // neighbours are next to each other; else all choices are neighbours
  Shift shifts = Shift::kNone;
};

using Point = std::vector<int>;  // a choice of each dimension

inline Point start_of(const std::vector<Dimension>& dimensions) {
  Point point;
  for (const Dimension& dimension : dimensions) point.push_back(dimension.start);
  return point;
}

// "micro-batch 4 x 2, recompute off": where the point differs from the start; empty: nowhere.
std::string describe(const std::vector<Dimension>& dimensions, const Point& point);

}  // namespace sluice::tools
