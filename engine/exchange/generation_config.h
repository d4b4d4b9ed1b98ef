// The generation_config.json of an exported model. With it, transformers' generate() behaves as
// with the model that the run began with.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/exchange/base_model.h"

namespace sluice::engine {

// Adds the base's settings to the file in `folder`, which may have those of the tokenizer. Token
// settings come only from that file, as the base's may be beyond the vocabulary. If nothing is
// known, the file refers to config.json, in the form that transformers itself writes.
Status complete_generation_config(aio::IoQueue& queue, const BaseModel& base,
                                  const std::string& folder);

}  // namespace sluice::engine
