// Checks the path of a recording's trace.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::bench {

// Whether a trace can be written there; called before anything is measured. The name must be free,
// and the folder must exist and be writable.
Status check_trace_file(const std::string& path);

}  // namespace sluice::bench
