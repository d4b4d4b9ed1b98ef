// sluice-engine, the program beside `sluice` that has all commands.
#pragma once

#include "aio/result.h"

namespace sluice::tools {

// Becomes sluice-engine with the words of this command line: it keeps the process's number, its
// streams, its working folder and its environment. Returns only what went wrong.
Error become_engine(char** argv);

}  // namespace sluice::tools
