// LinkSpeeds: what the ranks of a run exchange per second, and how long a collective takes by that.
//
// A rank receives of a gathered unit what the others have, and of a sum that is exchanged what the
// others added up for its shard: (world - 1) / world of the bytes either way. In a host that goes
// at the rate of a rank; what comes from other hosts goes through the network of the whole host,
// which all its ranks share: a gathered unit once, as a ring brings it, and an exchange as often as
// there are ranks. The slower of the two is how long it takes, and each call costs its latency.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "swap/stripe_weights.h"

namespace sluice::offload {

using swap::DuplexRates;

// The ranks of a run: as many on each host.
struct RankGroup {
  int world = 1;
  int local_world = 1;

  int hosts() const { return world / local_world; }
  bool is_alone() const { return world == 1; }
  // What a rank has of what those of a host share, and what so much of each is of the host.
  std::uint64_t share_of(std::uint64_t host_bytes) const {
    return host_bytes / static_cast<std::uint64_t>(local_world);
  }
  std::uint64_t of_host(std::uint64_t rank_bytes) const {
    return rank_bytes * static_cast<std::uint64_t>(local_world);
  }

  friend bool operator==(const RankGroup&, const RankGroup&) = default;
};

// Rates in bytes; 0: not known, and nothing can be sent.
struct LinkSpeeds {
  double gather_bytes_per_s = 0;    // all-gather: what a rank receives
  double exchange_bytes_per_s = 0;  // all-to-all: likewise
  double latency_s = 0;             // of a call
  // Between hosts: of a whole host, each way. 0: there is one host, or the rates above are of calls
  // over several.
  double network_bytes_per_s = 0;
  double network_latency_s = 0;  // more, of a call
  // Of each GPU, where all GPUs of the host copy at once; 0: as each alone.
  DuplexRates bus_together;
};

// Of a gathered unit, and of a sum, of so many bytes on each rank, in so many calls. Infinite:
// nothing can be sent.
double gather_s(const LinkSpeeds& link, const RankGroup& ranks, double bytes);
double exchange_s(const LinkSpeeds& link, const RankGroup& ranks, double bytes, double calls);
// What a rank receives of them.
double received_bytes(const RankGroup& ranks, double bytes);

}  // namespace sluice::offload
