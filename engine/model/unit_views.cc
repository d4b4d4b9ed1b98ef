#include "engine/model/unit_views.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace sluice::engine {

UnitViews::UnitViews(const UnitLayout& layout, const at::Tensor& flat)
    : UnitViews(layout, flat.storage(), flat.scalar_type()) {
  TORCH_CHECK(flat.dim() == 1 && flat.is_contiguous() && flat.storage_offset() == 0 &&
                  flat.numel() >= static_cast<std::int64_t>(layout.slot_elements),
              "unit ", layout.name, " needs a flat tensor of ", layout.slot_elements,
              " elements that begins its storage");
}

UnitViews::UnitViews(const UnitLayout& layout, const at::Storage& storage, at::ScalarType dtype) {
  const at::Tensor none = at::empty({0}, at::TensorOptions().dtype(dtype).device(storage.device()));
  views_.reserve(layout.parameters.size());
  for (const ParameterSpec& parameter : layout.parameters) {
    const std::vector<std::int64_t> shape = parameter.slot_shape();
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    at::Tensor view = at::empty({0}, none.options());
    view.set_(storage, static_cast<std::int64_t>(parameter.first_element), shape, strides);
    views_.push_back(std::move(view));
  }
}

UnitViews with_adapters(const UnitViews& base, const UnitViews& trained) {
  UnitViews views = base;
  for (int i = 0; i < trained.size(); ++i) views.append(trained[i]);
  return views;
}

UnitViews gradient_views(const ModelLayout& model, int unit, const UnitViews& own,
                         const UnitViews& borrowed_sums) {
  UnitViews views;
  if (!model.has_frozen()) {
    views = own;
    for (int i = 0; i < borrowed_sums.size(); ++i) views.append(borrowed_sums[i]);
    return views;
  }
  for (std::size_t i = 0; i < model.frozen(unit).parameters.size(); ++i) views.append({});
  for (int i = 0; i < own.size(); ++i) views.append(own[i]);
  for (std::size_t i = 0; i < model.borrowed(unit).size(); ++i) views.append({});
  return views;
}

UnitViews with_borrowed(const ModelLayout& model, int unit, const UnitViews& own,
                        std::span<const UnitViews* const> of_lenders) {
  UnitViews views = own;
  const std::vector<int>& lenders = model.lenders(unit);
  for (const BorrowedParameter& it : model.borrowed(unit)) {
    const auto lender = std::find(lenders.begin(), lenders.end(), it.unit);
    views.append((*of_lenders[static_cast<std::size_t>(lender - lenders.begin())])[it.parameter]);
  }
  return views;
}

}  // namespace sluice::engine
