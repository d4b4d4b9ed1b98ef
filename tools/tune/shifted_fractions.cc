#include "tools/tune/shifted_fractions.h"

#include <algorithm>

namespace sluice::tools {
namespace {

constexpr double kNothing = 1e-9;

// From `below` to `tier`, or back. What is left of a tier is not less than nothing.
bool move(double& tier, double& below, double share) {
  const double moved = std::clamp(share, -tier, below);
  tier += moved;
  below -= moved;
  return moved > kNothing || moved < -kNothing;
}

}  // namespace

std::optional<config::TierFractions> shifted(const config::TierFractions& from, Shift shifts,
                                             double share, bool has_drives) {
  config::TierFractions to = from;
  bool has_moved = false;
  if (shifts == Shift::kToGpu)
    has_moved = move(to.gpu, from.cpu > kNothing || !has_drives ? to.cpu : to.nvme, share);
  else if (shifts == Shift::kToCpu && has_drives)
    has_moved = move(to.cpu, to.nvme, share);
  if (!has_moved) return std::nullopt;
  return to;
}

}  // namespace sluice::tools
