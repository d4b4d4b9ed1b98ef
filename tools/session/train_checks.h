// What `sluice train` checks and reports before its work begins: that what it will write can be
// written, that data and weights exist, and where the weights come from.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/observe/trace_log.h"
#include "tools/session/resume_point.h"

namespace sluice::tools {

// --save-weights PATH.
struct WantedWeights {
  std::string path;  // empty: none
  bool replaces = false;
};
Status check_weights_output(const WantedWeights& wanted, const config::Config& config);

// The file or folder that model.init_from names.
Status check_init_from(const config::Config& config);

// Whether the steps to come, done + 1 to `steps`, have all those of the trace.
Status check_traced_steps(const engine::TraceLog::Options& trace, std::int64_t done,
                          std::int64_t steps);

// Whether the profile of flops_profiler can be written where it goes; a warning where the steps to
// come, after `done`, do not have its step.
Status check_flops_profile(const config::Config& config, std::int64_t done);

// A warning where the learning rate of the steps to come is beyond what any model learns with.
void warn_of_rate(const config::Config& config, std::int64_t done);

// One line: at random with their seed, from a file, or from a checkpoint. `config_file`: the run
// file that was named; where it lies in another run's folder, a second line says how to begin with
// that run's weights.
std::string weights_text(const config::Config& config, const ResumePoint& from,
                         const std::string& config_file);

}  // namespace sluice::tools
