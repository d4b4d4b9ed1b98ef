// The config.json of a Hugging Face folder with a Qwen3.5 text model, dense or with experts, to and
// from text. In that of a Qwen3.5 that also sees images it reads the text model.
//
// Parses only models that Sluice computes as transformers does. Anything else is refused, with the
// difference in the message. Missing keys have the defaults of transformers' class; keys that it
// does not read are ignored.
#pragma once

#include <string>
#include <string_view>

#include "engine/model/model_family.h"

namespace sluice::engine {

// The text of a text model alone.
std::string qwen3_5_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_qwen3_5_config(std::string_view text);

}  // namespace sluice::engine
