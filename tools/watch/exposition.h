// The metrics of runs in Prometheus's text format 0.0.4: each family with HELP and TYPE, in base
// units (seconds, bytes). Values of metrics.jsonl are named after their keys and explained by
// engine/observe/metric_keys.cc, so that new keys appear here automatically.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>

#include "tools/watch/run_follower.h"

namespace sluice::watch {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// The label `run` is a run's name.
std::string exposition(std::span<const RunFollower* const> runs);

}  // namespace sluice::watch
