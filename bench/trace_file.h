// Where a recording's trace goes.
#pragma once

#include <string>

#include "aio/result.h"

namespace sluice::bench {

// Whether a trace can be written there, to be asked before anything is measured: nothing bears the
// name, and the folder is there and can be written.
Status check_trace_file(const std::string& path);

}  // namespace sluice::bench
