// What `sluice train` checks and reports before its work begins: outputs are writable, data and
// weights exist, and where the weights come from.
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

// kInvalidArgument unless the remaining steps, done + 1 to `steps`, include all traced steps.
Status check_traced_steps(const engine::TraceLog::Options& trace, std::int64_t done,
                          std::int64_t steps);

// Checks that flops_profiler's output can be written; warns if the steps after `done` do not
// include its step.
Status check_flops_profile(const config::Config& config, std::int64_t done);

// Warns if the learning rate of the remaining steps is too high for any model to learn.
void warn_of_rate(const config::Config& config, std::int64_t done);

// One line: random weights with their seed, or the file or checkpoint that they come from.
// `config_file`: the named run file. If it is in another run's folder, a second line says how to
// begin with that run's weights.
std::string weights_text(const config::Config& config, const ResumePoint& from,
                         const std::string& config_file);

}  // namespace sluice::tools
