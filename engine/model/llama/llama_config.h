// The config.json of a Hugging Face folder that holds a Llama, a Mistral, a Ministral, a Qwen2 or a
// Qwen3, to and from text.
//
// Parses only models that Sluice computes as transformers does. Anything else (another activation,
// an unknown rope_type, layers in another order) is refused, with the difference in the message.
// Missing keys have the defaults of transformers' class; keys that it does not read are ignored.
#pragma once

#include <string>
#include <string_view>

#include "engine/model/model_family.h"

namespace sluice::engine {

// The text for transformers 5 and 4: it has rotary positions under both of their names.
std::string llama_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_llama_config(std::string_view text);

}  // namespace sluice::engine
