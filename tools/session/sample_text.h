// SampleText: a text that a run generated while it trained (samples.prompts).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/run/training_run.h"

namespace sluice::tools {

struct SampleText {
  std::string prompt;
  std::string text;  // that follows it
  std::int64_t tokens = 0;
  bool ended = false;  // the model ended the text
};

// Generates one text for each prompt. `stop`: whether to end early; then the texts made so far are
// returned. An error costs the texts, not the run.
using MakeSamples = std::function<Result<std::vector<SampleText>>(
    engine::TrainingRun& run, const std::function<bool()>& stop)>;

}  // namespace sluice::tools
