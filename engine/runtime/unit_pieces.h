// UnitPieces: where ranges of units' flat orders are among the model's parameters, as checkpoints
// name them.
//
// Threads: a value; any.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint/state_pieces.h"
#include "engine/model/model_layout.h"
#include "engine/runtime/flat_ranges.h"

namespace sluice::engine {

class UnitPieces {
 public:
  // `model` must outlive it.
  explicit UnitPieces(const ModelLayout& model) : model_(model) {
    std::uint64_t before = 0;
    for (int unit = 0; unit < model.units(); ++unit) {
      before_.push_back(before);
      before += model.layout(unit).parameters.size();
    }
  }

  // Calls visit(piece, its first element in the range) for each parameter with elements in
  // [first, first + elements) of a unit, in ascending order.
  template <typename Visit>
  void visit(int unit, std::uint64_t first, std::uint64_t elements, const Visit& visit) const {
    const UnitLayout& layout = model_.layout(unit);
    const auto add = [&](const ParameterSpec& parameter, std::uint64_t in_parameter,
                         std::uint64_t offset, std::uint64_t count) -> Status {
      const auto number = static_cast<std::uint64_t>(&parameter - layout.parameters.data());
      visit(StatePiece{.parameter = before_[static_cast<std::size_t>(unit)] + number,
                       .first_element = in_parameter,
                       .elements = count},
            offset);
      return {};
    };
    if (!layout.parameters.empty())
      static_cast<void>(for_each_parameter(layout, first, elements, add));
  }

 private:
  const ModelLayout& model_;
  std::vector<std::uint64_t> before_;  // parameters of earlier units, by unit
};

}  // namespace sluice::engine
