// Prepares a configuration for measuring its steps: random tokens, no saves, no evaluations.
#pragma once

#include "aio/result.h"
#include "engine/config/config.h"
#include "tools/measure/synthetic_tokens.h"

namespace sluice::tools {

// Writes random tokens to the folder for temporary files, and changes `config` to train on them
// from random weights. The returned object must exist until the run has opened the file.
Result<SyntheticTokens> use_synthetic_tokens(config::Config& config);

}  // namespace sluice::tools
