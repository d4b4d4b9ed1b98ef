// How a run's stores are called and dealt over its NVMe paths, and how much of them lies on each.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "offload/unit_shards.h"
#include "swap/state_store.h"

namespace sluice::engine {

struct PathBytes {
  std::string path;
  std::uint64_t bytes = 0;
};

// The name of a run's folders on its paths: the same for the same run directory, different for a
// different one. `what` is kept there, of one of several ranks.
std::string store_name(const config::Config& config, const std::string& what,
                       const offload::RankPart& ranks = {});

// The weights of a store on several of budget.nvme_paths: those that the configuration names, else
// `chosen`. Empty: equal.
std::vector<int> stripe_weights(const config::Config& config, const std::vector<int>& chosen);

// What a store of this many bytes takes on each of its paths; no paths where it is empty.
std::vector<PathBytes> bytes_on_paths(const swap::StateStore::Options& store, std::uint64_t bytes);

// Adds to those of the same path.
void add_on_paths(const std::vector<PathBytes>& more, std::vector<PathBytes>& all);

}  // namespace sluice::engine
