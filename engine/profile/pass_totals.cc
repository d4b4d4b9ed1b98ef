#include "engine/profile/pass_totals.h"

namespace sluice::engine {

void PassTotals::add_step(std::span<const PassSpan> spans) {
  for (const PassSpan& span : spans) {
    units_[static_cast<std::size_t>(span.unit)][static_cast<std::size_t>(span.phase)] +=
        static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  }
  ++steps_;
}

double PassTotals::seconds(int unit, PassPhase phase) const {
  if (steps_ == 0) return 0;
  return units_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(phase)] / steps_;
}

double PassTotals::seconds(PassPhase phase) const {
  double all = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    all += seconds(static_cast<int>(unit), phase);
  return all;
}

}  // namespace sluice::engine
