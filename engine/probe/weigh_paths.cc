#include "engine/probe/weigh_paths.h"

#include <algorithm>

#include "aio/check.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {

void count_sharers(const std::vector<std::string>& drives, std::vector<ProbedPath>& paths) {
  SLUICE_CHECK(drives.size() == paths.size(), "each path lies on a drive");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    paths[i].sharers = drives[i].empty()
                           ? 1
                           : static_cast<int>(std::count(drives.begin(), drives.end(), drives[i]));
  }
}

void weigh_paths(const std::optional<std::vector<int>>& named, ProbeReport& report) {
  std::vector<int> weights = named ? *named : swap::weights_by_speed(path_speeds(report));
  if (weights.empty()) weights.assign(report.paths.size(), 1);
  SLUICE_CHECK(weights.size() == report.paths.size(), "each path has a weight");
  for (std::size_t i = 0; i < weights.size(); ++i) report.paths[i].weight = weights[i];
}

}  // namespace sluice::engine
