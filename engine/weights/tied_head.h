// Checks a tied head ("lm_head.weight") in a file that also has the token embedding. It must equal
// the embedding bit for bit, since the model's logits are computed with the embedding itself.
#pragma once

#include <cstdint>
#include <limits>

#include "aio/result.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

// Call it after match_parameters(), which compares the shapes. Reads the first `most_elements` of
// both tensors, a piece at a time. kInvalidArgument if they differ; ok if the file or the family
// has no such head.
Status check_tied_head(const ParameterNames& names, WeightSource& weights,
                       std::uint64_t most_elements = std::numeric_limits<std::uint64_t>::max());

}  // namespace sluice::engine
