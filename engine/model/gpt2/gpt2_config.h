// The config.json of a Hugging Face folder that holds a GPT-2, to and from text.
//
// Parses only models that Sluice computes as transformers does. Anything else (another
// architecture, an unknown activation, cross-attention) is refused, with the difference in the
// message. Missing keys have transformers' defaults; keys that do not affect the computation are
// ignored. Sizes may have transformers' common names (num_attention_heads) instead of GPT-2's
// (n_head).
#pragma once

#include <string>
#include <string_view>

#include "engine/model/model_family.h"

namespace sluice::engine {

// The text that transformers' GPT2LMHeadModel reads.
std::string gpt2_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_gpt2_config(std::string_view text);

}  // namespace sluice::engine
