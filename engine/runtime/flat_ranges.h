// Finds the parameters in a range of a unit's flat order. Does not use LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/unit_layout.h"

namespace sluice::engine {

// Calls visit(parameter, first element in it, offset in the range, elements) for each parameter
// that has elements in [first, first + elements), in ascending order. Gaps between parameters are
// left out. Stops at the first error of visit, and returns it.
template <typename Visit>
auto for_each_parameter(const UnitLayout& layout, std::uint64_t first, std::uint64_t elements,
                        const Visit& visit)
    -> decltype(visit(layout.parameters.front(), first, first, elements)) {
  const std::uint64_t end = first + elements;
  for (const ParameterSpec& parameter : layout.parameters) {
    const std::uint64_t parameter_end = parameter.first_element + parameter.elements;
    const std::uint64_t begin_here =
        first > parameter.first_element ? first : parameter.first_element;
    const std::uint64_t end_here = end < parameter_end ? end : parameter_end;
    if (begin_here >= end_here) continue;
    auto status = visit(parameter, begin_here - parameter.first_element, begin_here - first,
                        end_here - begin_here);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace sluice::engine
