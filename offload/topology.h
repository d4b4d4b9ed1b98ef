// Topology: how the ranks of a run are spread over hosts. Shards, shares of a host and the
// exchanges between ranks derive from it.
//
// Threads: a value.
#pragma once

#include <cstdint>

#include "offload/unit_shards.h"

namespace sluice::offload {

struct Topology {
  int world = 1;
  int local_world = 1;  // ranks of this host
  // Every host has local_world ranks, which are neighbours: rank = host * local_world + local rank.
  // Otherwise gradients are exchanged between all ranks at once.
  bool is_regular = true;

  int hosts() const { return world / local_world; }
  // Whether the ranks of a host add up their sums before hosts exchange them.
  bool adds_by_host() const { return is_regular && local_world > 1 && hosts() > 1; }
  RankPart part(int rank) const {
    return {.rank = rank, .world = world, .hosts = adds_by_host() ? hosts() : 1};
  }
  // A rank's share of a quantity of the host, and the host's total of a quantity of each rank.
  std::uint64_t share_of(std::uint64_t host_bytes) const {
    return host_bytes / static_cast<std::uint64_t>(local_world);
  }
  std::uint64_t of_host(std::uint64_t rank_bytes) const {
    return rank_bytes * static_cast<std::uint64_t>(local_world);
  }

  friend bool operator==(const Topology&, const Topology&) = default;
};

}  // namespace sluice::offload
