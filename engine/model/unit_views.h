// UnitViews: a unit's parameters, or their gradients, as views of one flat tensor or storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "engine/model/model_layout.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

class UnitViews {
 public:
  UnitViews() = default;
  // Views of `flat`, which has layout.slot_elements elements; the views keep its memory alive.
  UnitViews(const UnitLayout& layout, const at::Tensor& flat);
  // Views of a storage of at least layout.slot_elements numbers, whose memory may be set later.
  UnitViews(const UnitLayout& layout, const at::Storage& storage, at::ScalarType dtype);

  // By position in UnitLayout::parameters, followed by the borrowed parameters in order. The shape
  // is slot_shape().
  const at::Tensor& operator[](int parameter) const {
    return views_[static_cast<std::size_t>(parameter)];
  }
  int size() const { return static_cast<int>(views_.size()); }
  void append(const at::Tensor& view) { views_.push_back(view); }

 private:
  std::vector<at::Tensor> views_;
};

// A unit's parameters as its passes get them if the model is frozen: the base's, followed by the
// trained ones. Without adapters there are only the base's.
UnitViews with_adapters(const UnitViews& base, const UnitViews& trained);

// A unit's views, followed by those of the parameters it borrows. `of_lenders`: the views of
// model.lenders(unit), in that order.
UnitViews with_borrowed(const ModelLayout& model, int unit, const UnitViews& own,
                        std::span<const UnitViews* const> of_lenders);

// The gradients of a unit in the same order, undefined for frozen parameters. They are the views of
// what the unit trains, and its separate sums for what it borrows (model.borrowed_sums(unit)). A
// frozen model ignores the latter.
UnitViews gradient_views(const ModelLayout& model, int unit, const UnitViews& own,
                         const UnitViews& borrowed_sums);

}  // namespace sluice::engine
