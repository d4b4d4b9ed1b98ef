#include "engine/step/gradient_sink.h"

namespace sluice::engine {

void BorrowedSums::add(const ModelLayout& model, int lender, const UnitViews& own, int borrower,
                       const UnitViews& sums) {
  const std::vector<BorrowedParameter>& borrowed = model.borrowed(borrower);
  for (int i = 0; i < sums.size(); ++i) {
    const BorrowedParameter& it = borrowed[static_cast<std::size_t>(i)];
    if (it.unit == lender) uses_.push_back({.gradient = own[it.parameter], .sum = sums[i]});
  }
}

void BorrowedSums::take_over() const {
  for (const Use& use : uses_) use.gradient.add_(use.sum);
}

}  // namespace sluice::engine
