// Models by their name on the Hugging Face hub, OWNER/NAME or OWNER/NAME@REVISION. The script
// tools/hub finds them in the hub's cache, and downloads there what is missing.
//
// Threads: blocks while files are downloaded; the script shows progress on standard error.
// Errors:  kNotFound with the script's sentence: no such model, no network, not logged in.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"

namespace sluice::tools {

enum class HubFiles : std::uint8_t {
  kModel,      // weights, configuration and tokenizer
  kTokenizer,  // no weights
  kConfig,     // config.json alone
};

// The folder of the model that `text` names on the hub; `text` itself if it is a path
// (engine::is_hub_name()).
Result<std::string> model_folder(const std::string& text, HubFiles files);

// Whether the folder is a model's in the hub's cache and has no weights: only a part was needed.
bool is_partial_snapshot(const std::string& folder);

}  // namespace sluice::tools
