#include "tools/tune/shifted_fractions.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::tools {
namespace {

constexpr double kNothing = 1e-9;

// Moves a share from `below` to `tier`, or back. No share falls below zero.
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

KeyValue fractions_key(const config::TierFractions& fractions) {
  const auto rounded = [](double share) { return std::round(share * 1e4) / 1e4; };
  const double gpu = rounded(fractions.gpu);
  const double nvme = rounded(fractions.nvme);
  const nlohmann::ordered_json json{
      {"gpu", gpu}, {"cpu", std::max(0.0, rounded(1 - gpu - nvme))}, {"nvme", nvme}};
  return {.key = "placement.optimizer_fractions", .json = json.dump()};
}

}  // namespace sluice::tools
