// The options of step_bench.
#pragma once

#include <optional>
#include <string>

#include "aio/result.h"
#include "tools/session/config_options.h"

namespace sluice::bench {

struct StepBenchOptions {
  tools::ConfigOptions config;
  int steps = 0;
  int warmup = 0;
  double seconds = 0;   // limit on the measured steps; 0: no limit
  std::string commit;   // for the result; empty: not given
  std::string json;     // empty: none; "-": standard output
  std::string profile;  // path of the trace of recorded steps; empty: none are recorded
};

// nullopt: --help or --version was requested and printed.
Result<std::optional<StepBenchOptions>> parse_step_command_line(int argc, const char* const* argv);

}  // namespace sluice::bench
