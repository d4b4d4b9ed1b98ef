#include "engine/model/zeroed_ranges.h"

namespace sluice::engine {

std::vector<offload::ElementRange> zeroed_ranges(const UnitLayout& layout) {
  std::vector<offload::ElementRange> ranges;
  std::uint64_t first = 0;
  const auto close = [&](std::uint64_t end) {
    if (end > first) ranges.push_back({.first = first, .elements = end - first});
  };
  for (const ParameterSpec& parameter : layout.parameters) {
    if (!parameter.gradient_is_product) continue;
    close(parameter.first_element);
    first = parameter.first_element + parameter.elements;
  }
  close(layout.slot_elements);
  return ranges;
}

}  // namespace sluice::engine
