// A head that a file has beside the token embedding it is tied to ("lm_head.weight") must be that
// embedding, bit for bit: such a model's logits are computed with the embedding itself.
#pragma once

#include <cstdint>
#include <limits>

#include "aio/result.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

// After match_parameters(), which compares the shapes. Reads the first `most_elements` of both
// tensors, a piece at a time. kInvalidArgument where they differ; ok where the file or the
// family has no such head.
Status check_tied_head(const ParameterNames& names, WeightSource& weights,
                       std::uint64_t most_elements = std::numeric_limits<std::uint64_t>::max());

}  // namespace sluice::engine
