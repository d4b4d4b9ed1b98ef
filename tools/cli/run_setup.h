// From a configuration to a run that is ready: plan, preflight (printed), memory, weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aio/result.h"
#include "aio/terminal_line.h"
#include "engine/train/evaluation_run.h"
#include "engine/train/training_run.h"

namespace sluice::tools {

// Both print the preflight table and progress on standard error.
Result<std::unique_ptr<engine::TrainingRun>> set_up_run(const config::Config& config);
Result<std::unique_ptr<engine::EvaluationRun>> set_up_evaluation(const config::Config& config);

// For progress: "what: 42%", now and then. The line must outlive it.
std::function<void(std::uint64_t done, std::uint64_t total)> show_share(TerminalLine& line,
                                                                        const std::string& what);

}  // namespace sluice::tools
