// aio_bench's command line: what --help prints, and how words become AioOptions.
#pragma once

#include <optional>

#include "aio/result.h"
#include "bench/aio_options.h"

namespace sluice::bench {

// nullopt: help or version was requested and printed. kInvalidArgument: one sentence.
Result<std::optional<AioOptions>> parse_command_line(int argc, const char* const* argv);

}  // namespace sluice::bench
