// The names of a run's stores, their distribution over its NVMe paths, and the bytes on each path.
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

// Absolute and without "." or a slash at its end, so that each folder has one name. `path` itself
// if it is empty, or the current folder is unknown.
std::string from_the_root(const std::string& path);

struct PathBytes {
  std::string path;
  std::uint64_t bytes = 0;
};

// The name of a run's folders on its paths. It depends only on the run directory, whatever its
// spelling, the kind of store `what`, and the rank if there are several.
std::string store_name(const config::Config& config, const std::string& what,
                       const offload::RankPart& ranks = {});

// The weights of a store on several budget.nvme_paths: the configured ones, or else `chosen`.
// Empty: equal.
std::vector<int> stripe_weights(const config::Config& config, const std::vector<int>& chosen);

// The bytes of a store on each of its paths; no paths if it is empty.
std::vector<PathBytes> bytes_on_paths(const swap::StateStore::Options& store, std::uint64_t bytes);

// Adds `more` to `all`, merging entries of the same path.
void add_on_paths(const std::vector<PathBytes>& more, std::vector<PathBytes>& all);

}  // namespace sluice::engine
