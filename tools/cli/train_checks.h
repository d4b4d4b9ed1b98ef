// What `sluice train` looks at and says before its work begins: that what it will write can be
// written, that data and weights are there, where the weights come from, and what a configuration
// has changed since the checkpoint that it goes on from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "engine/observe/trace_log.h"

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

// One line: at random with their seed, from a file, or from a checkpoint. `config_file`: the run
// file that was named; where that lies in another run's folder, a second line says how to begin
// with that run's weights.
std::string weights_text(const config::Config& config,
                         const std::optional<engine::CheckpointEntry>& checkpoint,
                         const std::string& config_file);

// A line for each key that decides results and is not as it was; empty for an imported checkpoint.
std::string changes_text(const engine::CheckpointState& stored, const config::Config& config);

}  // namespace sluice::tools
