// The config.json of a Hugging Face folder with a Gemma 3 text model, to and from text. A model
// that also sees images is read as its text model.
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
std::string gemma3_config_text(const HuggingFaceModel& model);

// Errors: ModelFamily::read_config().
Result<HuggingFaceModel> parse_gemma3_config(std::string_view text);

}  // namespace sluice::engine
