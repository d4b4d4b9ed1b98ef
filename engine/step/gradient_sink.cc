#include "engine/step/gradient_sink.h"

#include <utility>

namespace sluice::engine {

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
  for (int folds = order_.folds_behind(micro_batch); folds > 0; --folds) fold(unit, level--);
  added_[static_cast<std::size_t>(unit)] = micro_batch + 1;
}

void BorrowedSums::add(const ModelLayout& model, int lender, const UnitViews& own, int borrower,
                       const UnitViews& sums) {
  const std::vector<BorrowedParameter>& borrowed = model.borrowed(borrower);
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

void BorrowedSums::take_over() const {
  for (const Use& use : uses_) use.gradient.add_(use.sum);
}

void BorrowedSums::lay_out(int use) const {
  for (const std::size_t index : uses_of_[static_cast<std::size_t>(use)].uses)
    uses_[index].gradient.copy_(uses_[index].sum);
}

}  // namespace sluice::engine
