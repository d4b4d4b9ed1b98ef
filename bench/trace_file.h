// Where a recording's trace goes.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::bench {

// Whether a trace can be written there; ask before anything is measured: nothing has the name, and
// the folder exists and is writable.
Status check_trace_file(const std::string& path);

}  // namespace sluice::bench
