// What a trial that was killed left on the drives.
#pragma once

#include <string>

#include "aio/io_watchdog.h"
#include "engine/config/config.h"

namespace sluice::tools {

struct EndedTrial {
  int process = 0;
  std::string started_utc;  // or shortly before, as RunOwner::started_utc
};

// Removes what the process of a trial, which has ended, left on the NVMe paths of `config`. What
// cannot be removed is a warning.
void remove_leftovers(const config::Config& config, const EndedTrial& trial,
                      aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
