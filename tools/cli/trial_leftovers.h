// What a trial that was killed left on the drives.
#pragma once

#include "aio/io_watchdog.h"
#include "engine/config/config.h"

namespace sluice::tools {

// Removes the folders of process `process`, which has ended, on the NVMe paths of `config`. What
// cannot be removed is a warning.
void remove_leftovers(const config::Config& config, int process, aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
