// A configuration whose steps are to be measured: on random tokens, nothing saved or evaluated.
#pragma once

#include "aio/result.h"
#include "engine/config/config.h"
#include "tools/measure/synthetic_tokens.h"

namespace sluice::tools {

// Makes the tokens, in the folder for temporary files, and changes `config` to train on them and
// from random weights. They must exist until the run has opened them.
Result<SyntheticTokens> use_synthetic_tokens(config::Config& config);

}  // namespace sluice::tools
