// A head that a file has beside the token embedding ("lm_head.weight") must be that embedding, bit
// for bit: our models compute logits with the embedding itself.
#pragma once

#include <cstdint>
#include <limits>

#include "aio/result.h"
#include "engine/weights/safetensors_reader.h"

namespace sluice::engine {

// After match_gpt2_parameters(), which compares the shapes. Reads the first `most_elements` of both
// tensors, a piece at a time. kInvalidArgument where they differ; ok where the file has no head.
Status check_tied_head(SafetensorsReader& weights,
                       std::uint64_t most_elements = std::numeric_limits<std::uint64_t>::max());

}  // namespace sluice::engine
