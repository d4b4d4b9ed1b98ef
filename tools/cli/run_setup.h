// From a configuration to a run that is ready: plan, preflight (printed), memory, initial weights.
#pragma once

#include <memory>

#include "aio/result.h"
#include "engine/train/training_run.h"

namespace sluice::tools {

// Prints the preflight table and progress on standard error.
Result<std::unique_ptr<engine::TrainingRun>> set_up_run(const config::Config& config);

}  // namespace sluice::tools
