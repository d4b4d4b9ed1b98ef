// Stores that killed runs left on NVMe paths. They are useless, and take space from the next run.
// They are removed before that run is planned, so that its plan and its checks count the freed
// space.
//
// Threads: one.
// Errors:  stores that cannot be listed, judged or removed stay, and are logged
//          (swap/store_inventory.h). The run itself finds out whether they are in its way.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"

namespace sluice::engine {

// Removes leftovers from all paths that a run of the configuration may use. A collective:
// one rank of each host removes them, the others wait, and errors are the link's.
Status clear_leftovers(const config::Config& config, Communicator& link = single_process());

// Before another run takes the place of the one in the configuration's folder: removes the
// checkpoint in that run's store, and then the store, which would be in the way. Checkpoints of
// files stay, and so does a store that is another folder's. After a kill at any moment, the run is
// as it was, or its next start removes the store.
Status remove_stored_run(const config::Config& config, aio::IoQueue& queue);

// For callers that remove nothing: a sentence with the size of the leftovers on those paths, which
// the next run will remove; empty if there are none.
std::string leftovers_note(const config::Config& config);

}  // namespace sluice::engine
