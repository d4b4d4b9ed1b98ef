// What killed runs left on NVMe paths: of no use to anybody, and in the way of the next run. It
// goes before that one is planned, so that its plan and its checks count the room that it will
// have.
//
// Threads: one. What cannot be listed, judged or removed stays, and is logged
// (swap/store_inventory.h): whether it is in the way is for the run to find.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"

namespace sluice::engine {

// Removes it from all paths that a run of the configuration may use. With a link for all ranks to
// call: one of each host removes, and the others wait for it; errors are those of the link.
Status clear_leftovers(const config::Config& config, Communicator* link = nullptr);

// For who removes nothing: how much of those paths it is, and that the next run will have it; empty
// where there is none.
std::string leftovers_note(const config::Config& config);

}  // namespace sluice::engine
