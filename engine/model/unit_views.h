// UnitViews: a unit's parameters, or their gradients, as views of one flat tensor or storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/model/unit_layout.h"

namespace sluice::engine {

class UnitViews {
 public:
  UnitViews() = default;
  // Views of `flat`, which has layout.slot_elements elements and keeps its memory.
  UnitViews(const UnitLayout& layout, const at::Tensor& flat);
  // Views of a storage of at least layout.slot_elements numbers, whose memory may come later.
  UnitViews(const UnitLayout& layout, const at::Storage& storage, at::ScalarType dtype);

  // By position in UnitLayout::parameters; shaped as its slot_shape().
  const at::Tensor& operator[](int parameter) const {
    return views_[static_cast<std::size_t>(parameter)];
  }
  int size() const { return static_cast<int>(views_.size()); }

 private:
  std::vector<at::Tensor> views_;
};

}  // namespace sluice::engine
