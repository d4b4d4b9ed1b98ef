// PassTotals: the time of each phase of each unit, added up over steps.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/observe/pass_span.h"

namespace sluice::engine {

class PassTotals {
 public:
  explicit PassTotals(int units) : units_(static_cast<std::size_t>(units)) {}

  void add_step(std::span<const PassSpan> spans);
  int steps() const { return steps_; }

  // The mean per step; 0 without steps.
  double seconds(int unit, PassPhase phase) const;
  double seconds(PassPhase phase) const;  // over all units

 private:
  int steps_ = 0;
  std::vector<std::array<double, kPassPhases>> units_;
};

}  // namespace sluice::engine
