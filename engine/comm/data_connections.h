// One data connection between each two ranks: this rank connects to the lower ranks, and the higher
// ranks connect here, all at once. A failure of the run ends this immediately.
//
// Threads: one.
// Errors:  the run's failure; kTimedOut, naming the ranks that did not come; those of handshake.h.
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/comm/control_channel.h"
#include "engine/comm/run_key.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

// By rank; this rank's own entry stays empty. `key`: the run's.
Result<std::vector<FileDescriptor>> connect_for_data(ControlChannel& control, int rank,
                                                     const RunKey& key, Deadline deadline);

}  // namespace sluice::engine
