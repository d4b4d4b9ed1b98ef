// How fast the ranks of a run exchange what is in some memory: all-gathers and all-to-alls of
// several sizes, as a step makes them.
//
// Memory:  the caller's.
// Threads: one; a collective: all ranks call it, with buffers of one size.
// Errors:  as from Communicator.
#pragma once

#include <cstddef>
#include <span>

#include "aio/clock.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "offload/planner/link_speeds.h"

namespace sluice::engine {

struct LinkBuffers {
  std::span<std::byte> sent;  // of one size, which is a multiple of the ranks' number
  std::span<std::byte> received;
  void* stream = nullptr;  // CollectiveOptions::stream
};

// The same on all ranks: of the slowest. Larger sizes follow only where smaller ones took less than
// a third of a second. The rates are of calls over all ranks, whichever hosts they are on.
Result<offload::LinkSpeeds> time_link(Communicator& link, const LinkBuffers& buffers,
                                      const Clock& clock);

}  // namespace sluice::engine
