// make_host_communicator: every collective of communicator.h on host memory, built from messages.
//
// How:     all_gather, all_to_all and broadcast go directly between each two ranks, all at once. A
//          broadcast is sent by its root once for each rank. A large all_gather of the world
//          crosses the network once per host, if the hosts are regular (offload::Topology).
// Memory:  1 MiB of scratch; from 256 ranks on, 4 KiB a rank; allocated at creation.
// Errors:  those of make_groups(); a stream is refused (kUnsupported), because device memory is not
//          supported.
#pragma once

#include <memory>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/host_links.h"

namespace sluice::engine {

Result<std::unique_ptr<Communicator>> make_host_communicator(std::unique_ptr<HostLinks> links);

}  // namespace sluice::engine
