// Opens weights in a safetensors file, an index or a folder, or in a checkpoint of any number of
// ranks, and checks that they belong to the expected model. It compares the description next to
// them (described_model.h), their tensors, and their head (check_tied_head()).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/model/model_shape.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

// Checks a tied head ("lm_head.weight") in a file that also has the token embedding. It must equal
// the embedding bit for bit, since the model's logits are computed with the embedding itself.
// Call it after match_parameters(), which compares the shapes. Reads the first `most_elements` of
// both tensors, a piece at a time. kInvalidArgument if they differ; ok if the file or the family
// has no such head.
Status check_tied_head(const ParameterNames& names, WeightSource& weights,
                       std::uint64_t most_elements = std::numeric_limits<std::uint64_t>::max());

struct ModelWeights {
  std::unique_ptr<WeightSource> reader;
  std::vector<TensorSpec> parameters;  // the model's, in flat order
  std::vector<std::string> names;      // of each parameter in the file
};

// How much of an output head is compared with the embedding.
enum class HeadCheck : std::uint8_t {
  kBeginning,  // before a command's work: a few MiB detect nearly every untied head
  kWhole,      // when the weights are used
};

// kInvalidArgument: weights of another model. `queue` must outlive the result.
Result<ModelWeights> open_model_weights(aio::IoQueue& queue, const std::string& path,
                                        const ModelShape& shape, HeadCheck head);

}  // namespace sluice::engine
