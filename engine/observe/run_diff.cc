#include "engine/observe/run_diff.h"

#include <bit>
#include <cstddef>
#include <limits>
#include <sstream>

namespace sluice::engine {
namespace {

class StepComparison {
 public:
  StepComparison(const StepMetrics& a, const StepMetrics& b) : difference_{.step = a.step} {
    number("loss", a.loss, b.loss);
    number("lr", a.lr, b.lr);
    number("grad_norm", a.grad_norm, b.grad_norm);
    number("loss_scale", a.loss_scale, b.loss_scale);
    if (a.skipped != b.skipped)
      difference_.metrics.emplace_back(a.skipped ? "skipped in the first alone"
                                                 : "skipped in the second alone");
    if (a.val_loss && b.val_loss) number("val_loss", *a.val_loss, *b.val_loss);
    units(a.unit_hashes, b.unit_hashes);
  }

  bool hashed() const { return hashed_; }
  std::optional<RunDifference> difference() const {
    const bool equal = difference_.metrics.empty() && difference_.gradients.empty() &&
                       difference_.parameters.empty();
    return equal ? std::nullopt : std::optional(difference_);
  }

 private:
  // Compares bits, so that a NaN loss on both sides counts as equal.
  void number(const char* name, double a, double b) {
    if (std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b)) return;
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::max_digits10);
    text << name << " " << a << " and " << b;
    difference_.metrics.push_back(text.str());
  }

  void units(const std::vector<UnitHashes>& a, const std::vector<UnitHashes>& b) {
    hashed_ = !a.empty() && !b.empty();
    if (!hashed_) return;
    if (a.size() != b.size()) {
      difference_.metrics.push_back(std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                                    " units");
      return;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].unit != b[i].unit) {
        difference_.metrics.push_back("unit " + a[i].unit + " and unit " + b[i].unit);
        return;
      }
      if (a[i].gradient != b[i].gradient) difference_.gradients.push_back(a[i].unit);
      if (a[i].parameters != b[i].parameters) difference_.parameters.push_back(a[i].unit);
    }
  }

  RunDifference difference_;
  bool hashed_ = false;
};

}  // namespace

RunComparison compare_runs(std::span<const StepMetrics> a, std::span<const StepMetrics> b) {
  RunComparison result;
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a.size() && k < b.size() && !result.difference) {
    if (a[i].step != b[k].step) {
      ++(a[i].step < b[k].step ? result.only_in_a : result.only_in_b);
      ++(a[i].step < b[k].step ? i : k);
      continue;
    }
    const StepComparison step(a[i++], b[k++]);
    result.difference = step.difference();
    if (result.difference) break;
    ++result.equal_steps;
    if (step.hashed()) ++result.hashed_steps;
  }
  if (!result.difference) {
    result.only_in_a += static_cast<std::int64_t>(a.size() - i);
    result.only_in_b += static_cast<std::int64_t>(b.size() - k);
  }
  return result;
}

}  // namespace sluice::engine
