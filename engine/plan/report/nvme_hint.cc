#include "engine/plan/report/nvme_hint.h"

#include <cmath>
#include <numeric>

#include "aio/units.h"
#include "engine/plan/report/plan_words.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

// Whether the run would fit on the other paths alone.
bool fits_without(const config::Config& config, NvmeStripes stripes, std::size_t path,
                  std::uint64_t needed_bytes) {
  const auto at = static_cast<std::ptrdiff_t>(path);
  stripes.room_bytes.erase(stripes.room_bytes.begin() + at);
  stripes.weights.erase(stripes.weights.begin() + at);
  if (config.placement.nvme_weights)
    return swap::striped_room(stripes.room_bytes, stripes.weights) >= needed_bytes;
  return swap::weights_within(stripes.room_bytes, stripes.weights, needed_bytes).has_value();
}

// The paths that are too small for what their weights give them.
std::string more_at_full_paths(const config::Config& config, const NvmeStripes& stripes,
                               std::uint64_t needed_bytes) {
  const double all = std::accumulate(stripes.weights.begin(), stripes.weights.end(), 0.0);
  std::string full;
  std::string superfluous;
  for (std::size_t i = 0; i < stripes.paths.size(); ++i) {
    const auto share = static_cast<std::uint64_t>(
        std::ceil(static_cast<double>(needed_bytes) * stripes.weights[i] / all));
    if (stripes.room_bytes[i] >= share) continue;
    full += (full.empty() ? "" : ", ") + stripes.paths[i] + " has room for " +
            format_bytes(stripes.room_bytes[i]) + " of the " + format_bytes(share) +
            " that it would take";
    if (superfluous.empty() && fits_without(config, stripes, i, needed_bytes))
      superfluous = stripes.paths[i];
  }
  return "more room on NVMe (" + full + ": free some space there, " +
         (superfluous.empty() ? "" : "take " + superfluous + " out of budget.nvme_paths, ") +
         "or add a path on another drive to budget.nvme_paths)";
}

// Paths of one store each. The plan does not say how much each one is short of.
std::string more_at_any_path(const NvmeStripes& stripes) {
  std::string rooms;
  for (std::size_t i = 0; i < stripes.paths.size(); ++i)
    rooms += (rooms.empty() ? "" : ", ") + stripes.paths[i] + " has room for " +
             format_bytes(stripes.room_bytes[i]);
  return "more room on NVMe (" + rooms +
         ": free some space there, or name folders with more of it in budget.nvme_paths)";
}

// What the drives themselves lack for this many bytes; empty: nothing.
std::string more_on_drives(const config::Config& config, const NvmeStripes& stripes,
                           std::uint64_t needed_bytes) {
  if (stripes.room_bytes.empty() || stripes.room() >= needed_bytes) return "";
  if (config.budget.nvme_paths.empty()) return more_at_any_path(stripes);
  if (roomier_weights(stripes, needed_bytes)) {
    if (config.placement.nvme_weights) return "placement.nvme_weights \"auto\"";
    // The plan chooses them itself once budget.nvme_gib allows the bytes; otherwise it has tried
    // already.
    if (config.budget.nvme_gib) return "";
  }
  return more_at_full_paths(config, stripes, needed_bytes);
}

}  // namespace

std::string more_nvme_text(const config::Config& config, const RunPlan& plan,
                           std::uint64_t more_bytes) {
  const std::uint64_t needed_bytes = plan.ranks.of_host(plan.input.budget.nvme + more_bytes);
  if (plan.stripes.paths.empty()) {
    return "a folder on a local drive with " + gib_up_text(free_for_room(needed_bytes)) +
           " GiB free (budget.nvme_paths)";
  }
  std::string drives = more_on_drives(config, plan.stripes, needed_bytes);
  const bool is_given = config.budget.nvme_gib || plan.stripes.room_bytes.empty();
  if (!is_given && !drives.empty()) return drives;
  return "budget.nvme_gib " + gib_up_text(needed_bytes) + (drives.empty() ? "" : " and " + drives);
}

}  // namespace sluice::engine
