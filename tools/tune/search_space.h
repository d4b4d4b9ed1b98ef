// The space of a search: dimensions, their choices, and points that take one choice of each
// dimension.
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

// Shifts optimizer state away from the plan's placement. The plan depends on the rest of the point,
// so the shift is computed for each point (shifted(), tune_dimensions.h).
enum class Shift : std::uint8_t {
  kNone,
  kToGpu,  // from RAM, or from the drives if RAM has none
  kToCpu,  // from the drives
};

struct Choice {
  std::string label;
  std::vector<KeyValue> keys;  // empty: as in the user's configuration
  double shift = 0;            // share of the state; only in a dimension that shifts
};

struct Dimension {
  std::string name;
  std::vector<Choice> choices;
  int start = 0;        // the choice that the configuration or its plan made
  bool ordered = true;  // neighbours are adjacent choices; else all choices are neighbours
  Shift shifts = Shift::kNone;
};

using Point = std::vector<int>;  // one choice per dimension

inline Point start_of(const std::vector<Dimension>& dimensions) {
  Point point;
  for (const Dimension& dimension : dimensions) point.push_back(dimension.start);
  return point;
}

// Describes how the point differs from the start: "micro-batch 4 x 2, recompute off"; empty for the
// start.
std::string describe(const std::vector<Dimension>& dimensions, const Point& point);

}  // namespace sluice::tools
