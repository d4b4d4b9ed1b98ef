#include "engine/step/gradient_sink.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {

GradientTotals gradient_totals(const ModelLayout& model,
                               const std::vector<const offload::SquareSum*>& sums) {
  GradientTotals totals;
  for (int unit = 0; unit < model.units(); ++unit) {
    if (model.layout(unit).elements == 0) continue;
    const offload::SquareSum& sum = *sums[static_cast<std::size_t>(unit)];
    totals.square_sums.push_back(sum.total());
    totals.square_sum += totals.square_sums.back();
    if (sum.finite()) continue;
    totals.finite = false;
    totals.first_not_finite = unit;  // backward runs from the last to the first
  }
  return totals;
}

UnitViews fp32_views(const UnitLayout& layout, float* memory) {
  if (layout.parameters.empty()) return {};
  return {layout,
          at::from_blob(memory, {static_cast<std::int64_t>(layout.slot_elements)}, at::kFloat)};
}

GradientSink::Target GradientSink::target(int unit, std::int64_t micro_batch) {
  const int level = order_.level(micro_batch);
  const bool begins = order_.begins_lane(micro_batch);
  if (begins) zero(unit, level);
  added_[static_cast<std::size_t>(unit)] = micro_batch;
  begun_[static_cast<std::size_t>(unit)] = micro_batch + 1;
  return {.sums = sums(unit, level), .overwrites = begins};
}

void GradientSink::added(int unit, std::int64_t micro_batch) {
  int level = order_.level(micro_batch);
  for (int folds = order_.folds_after(micro_batch); folds > 0; --folds) fold(unit, level--);
  added_[static_cast<std::size_t>(unit)] = micro_batch + 1;
}

std::vector<int> BorrowedSums::borrowers(const ModelLayout& model, int lender) {
  std::vector<int> all;
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::vector<int>& lenders = model.lenders(unit);
    const bool borrows = std::find(lenders.begin(), lenders.end(), lender) != lenders.end();
    if (borrows && model.borrowed_sums(unit).slot_elements > 0) all.push_back(unit);
  }
  return all;
}

BorrowedSums BorrowedSums::of(const ModelLayout& model, int lender, const UnitViews& own,
                              const std::function<UnitViews(int borrower)>& sums_of) {
  BorrowedSums sums;
  for (const int borrower : borrowers(model, lender))
    sums.add(model, lender, own, borrower, sums_of(borrower));
  return sums;
}

void BorrowedSums::add(const ModelLayout& model, int lender, const UnitViews& own, int borrower,
                       const UnitViews& sums) {
  const std::vector<BorrowedParameter>& borrowed = model.borrowed(borrower);
  SLUICE_CHECK(static_cast<std::size_t>(sums.size()) == borrowed.size(),
               "a borrower adds up all that it borrows");
  UseOf use;
  for (int i = 0; i < sums.size(); ++i) {
    const BorrowedParameter& it = borrowed[static_cast<std::size_t>(i)];
    if (it.unit != lender) continue;
    use.uses.push_back(uses_.size());
    uses_.push_back({.gradient = own[it.parameter], .sum = sums[i]});
    const ParameterSpec& parameter =
        model.layout(lender).parameters[static_cast<std::size_t>(it.parameter)];
    use.ranges.push_back({.first = parameter.first_element, .elements = parameter.elements});
  }
  uses_of_.push_back(std::move(use));
}

void BorrowedSums::add_to_lender() const {
  for (const Use& use : uses_) use.gradient.add_(use.sum);
}

void BorrowedSums::copy_to_lender(int use) const {
  for (const std::size_t index : uses_of_[static_cast<std::size_t>(use)].uses)
    uses_[index].gradient.copy_(uses_[index].sum);
}

}  // namespace sluice::engine
