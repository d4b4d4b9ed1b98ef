// sluice-engine: the program next to `sluice` that has all commands.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::tools {

// Its path, whether or not it exists. kIo: the path of this program cannot be read.
Result<std::string> engine_path();

// Replaces this process by sluice-engine with the same arguments; process ID, streams, working
// folder and environment are kept. Returns only on failure.
Error become_engine(char** argv);

}  // namespace sluice::tools
