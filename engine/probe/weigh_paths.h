// Which weights the stripes of a probed machine's NVMe paths have.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/probe/probe_report.h"

namespace sluice::engine {

// Sets the sharers of each path, by the drive that it lies on. A drive without a name has one path.
void count_sharers(const std::vector<std::string>& drives, std::vector<ProbedPath>& paths);

// Sets the weights of paths whose sharers are known: the configured ones (none: equal), else by
// each path's own speed.
void weigh_paths(const std::optional<std::vector<int>>& named, ProbeReport& report);

}  // namespace sluice::engine
