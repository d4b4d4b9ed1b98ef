// Connects this process with the other ranks that a launcher started, over the available transport:
// TCP if the launcher tells where rank 0 listens, otherwise MPI.
//
// Threads: the main thread, at start.
// Errors:  those of rank_context.h and of the transports.
#pragma once

#include <memory>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"

namespace sluice::engine {

// The environment of this process.
Environment own_environment();

// Waits for the other ranks; null: there is only one rank. `listener`: rank 0's socket that already
// listens; -1: none. kUnsupported: the launcher needs MPI, and its plug-in is missing.
Result<std::unique_ptr<Communicator>> meet_ranks(const Launch& launch, int listener = -1);

}  // namespace sluice::engine
