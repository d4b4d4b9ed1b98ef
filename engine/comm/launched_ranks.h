// How this process meets the other ranks that a launcher started with it, by whichever transport
// there is: TCP where the launcher says where rank 0 listens, else MPI.
//
// Threads: the one that starts the program.
// Errors:  rank_context.h's, and those of the transports.
#pragma once

#include <memory>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"

namespace sluice::engine {

// Of this process.
Environment own_environment();

// Null: there is one rank. Waits for the others. `listener`: a socket that listens already, of rank
// 0; -1: none. kUnsupported: by MPI without its plug-in.
Result<std::unique_ptr<Communicator>> meet_ranks(const Launch& launch, int listener = -1);

}  // namespace sluice::engine
