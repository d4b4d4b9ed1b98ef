// What a trial that was killed left on the drives.
#pragma once

#include "aio/io_watchdog.h"
#include "engine/config/config.h"

namespace sluice::tools {

// Removes it from the NVMe paths of `config`, as every run does when it begins: what a killed run
// left there, and nothing else (swap/store_inventory.h). What cannot be removed causes a warning.
void remove_leftovers(const config::Config& config, aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
