// The rates at which a run's ranks exchange data in some memory: all-gathers and all-to-alls of
// several sizes, as a step makes them.
//
// Memory:  the caller's.
// Threads: one; a collective: all ranks call it, with buffers of one size.
// Errors:  those of Communicator.
#pragma once

#include <cstddef>
#include <span>

#include "aio/clock.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "offload/planner/link_speeds.h"

namespace sluice::engine {

struct LinkBuffers {
  std::span<std::byte> sent;  // both have the same size, a multiple of the number of ranks
  std::span<std::byte> received;
  void* stream = nullptr;  // CollectiveOptions::stream
};

// Returns the slowest rank's rates on all ranks. Larger sizes are measured only if smaller ones
// take less than a third of a second. The rates are for all ranks, on any hosts; an exchange has
// the hops of a run's reduction.
Result<offload::LinkSpeeds> time_link(Communicator& link, const LinkBuffers& buffers,
                                      const Clock& clock);

}  // namespace sluice::engine
