// One connection for data between each two ranks: this one connects to those below it, and those
// above it connect here. All at once; a failure of the run ends it at once.
//
// Threads: one.
// Errors:  the run's failure; kTimedOut, naming those who did not come; handshake.h's.
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/comm/control_channel.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

// By rank; this one's own stays empty. `key`: the run's.
Result<std::vector<FileDescriptor>> connect_for_data(ControlChannel& control, int rank,
                                                     const RunKey& key, Deadline deadline);

}  // namespace sluice::engine
