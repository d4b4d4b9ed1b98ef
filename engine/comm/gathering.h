// Rank 0's side of a rendezvous (rendezvous.h): waits for all other ranks, and sends them the
// table.
#pragma once

#include "aio/result.h"
#include "engine/comm/rendezvous.h"

namespace sluice::engine {

Result<Meeting> gather_ranks(const TcpOptions& options, FileDescriptor listener, Deadline deadline);

}  // namespace sluice::engine
