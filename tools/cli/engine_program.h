// sluice-engine: the program next to `sluice` that has all commands.
#pragma once

#include "aio/result.h"

namespace sluice::tools {

// Replaces this process by sluice-engine with the same arguments; process ID, streams, working
// folder and environment are kept. Returns only on failure.
Error become_engine(char** argv);

}  // namespace sluice::tools
