// The config.json of a Hugging Face folder that holds a GPT-2, to and from text.
//
// What is parsed is a model that Sluice computes as transformers does. Anything else - another
// architecture, an activation that is not known, attention to a second text - is refused with what
// is different. Keys that are missing have transformers' defaults; keys that do not change what the
// model computes are not looked at. Sizes may have transformers' common names (num_attention_heads)
// instead of GPT-2's (n_head).
#pragma once

#include <string>
#include <string_view>

#include "engine/model/model_family.h"

namespace sluice::engine {

// As transformers' GPT2LMHeadModel reads it.
std::string gpt2_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_gpt2_config(std::string_view text);

}  // namespace sluice::engine
