// The config.json of a Hugging Face folder that holds a Llama, a Mistral, a Ministral, a Qwen2 or a
// Qwen3, to and from text.
//
// What is parsed is a model that Sluice computes as transformers does. Anything else - another
// activation, a rope_type that is not known, layers in an order of their own - is refused with what
// is different. Keys that are missing have the defaults of transformers' class; keys that it does
// not read are not looked at.
#pragma once

#include <string>
#include <string_view>

#include "engine/model/model_family.h"

namespace sluice::engine {

// As transformers 5 reads it, and 4: rotary positions stand there under both their names.
std::string llama_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_llama_config(std::string_view text);

}  // namespace sluice::engine
