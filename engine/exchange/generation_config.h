// generation_config.json of an exported model: with it transformers' generate() does as with the
// model that the run began with.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/base_model.h"

namespace sluice::engine {

// Adds the base's settings to the file in `folder`, which has those of the tokenizer, if any; of
// tokens only what is there already counts, as the base's may be beyond the vocabulary. Where
// nothing is known, the file says that config.json is to be asked, as transformers itself does.
Status complete_generation_config(aio::IoQueue& queue, const BaseModel& base,
                                  const std::string& folder);

}  // namespace sluice::engine
