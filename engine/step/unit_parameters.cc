#include "engine/step/unit_parameters.h"

#include <algorithm>

#include "aio/check.h"
#include "engine/budget/gpu_plan.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

void FetchedUnits::acquire(int unit) {
  fetched_.push_back({.unit = unit, .views = value_or_throw(parameters_.acquire(unit))});
}

const UnitViews& FetchedUnits::of(int unit) const {
  const auto found = std::find_if(fetched_.begin(), fetched_.end(),
                                  [unit](const Fetched& it) { return it.unit == unit; });
  SLUICE_CHECK(found != fetched_.end(), "a unit is fetched before it is computed with");
  return *found->views;
}

UnitViews FetchedUnits::views(const ModelLayout& model, int unit) const {
  std::vector<const UnitViews*> of_lenders;
  for (const int lender : model.lenders(unit)) of_lenders.push_back(&of(lender));
  return with_borrowed(model, unit, of(unit), of_lenders);
}

void FetchedUnits::release() {
  for (auto it = fetched_.rbegin(); it != fetched_.rend(); ++it) parameters_.release(it->unit);
  fetched_.clear();
}

void FetchedUnits::abandon() noexcept {
  for (auto it = fetched_.rbegin(); it != fetched_.rend(); ++it) {
    try {
      parameters_.release(it->unit);
    } catch (...) {
    }
  }
  fetched_.clear();
}

UnitCopies::UnitCopies(const ModelLayout& model, const BaseForm& form, const Gathering& gathering,
                       const offload::UnitResidency& residency) {
  if (!gathering.keeps_copies() || !form.is_sharded()) return;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    const bool passes = !residency.resident(unit);
    units_.push_back({.offset = bytes_, .bytes = passes ? copy_bytes(layout, form, gathering) : 0});
    if (passes) bytes_ += copy_place_bytes(layout, form, gathering);
  }
}

offload::ProgramUnits program_units(const ModelLayout& model) {
  return {.count = model.units(),
          .lenders = [&model](int unit) -> const std::vector<int>& { return model.lenders(unit); }};
}

void expect_on_host(offload::ParamOffloader& params, std::span<const int> order) {
  std::vector<int> there(order.begin(), order.end());
  std::erase_if(there, [&](int unit) { return !params.on_host(unit); });
  params.expect(there);
}

}  // namespace sluice::engine
