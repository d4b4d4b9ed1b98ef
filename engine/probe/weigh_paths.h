// The stripe weights of a probed machine's NVMe paths.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/probe/probe_report.h"

namespace sluice::engine {

// Sets the sharers of each path, by its drive. A drive without a name has one path.
void count_sharers(const std::vector<std::string>& drives, std::vector<ProbedPath>& paths);

// Sets the weights of paths whose sharers are set: the configured weights (none: equal), or else by
// each path's own speed.
void weigh_paths(const std::optional<std::vector<int>>& named, ProbeReport& report);

}  // namespace sluice::engine
