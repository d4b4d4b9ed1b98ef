// Weights in a safetensors file, an index or a folder, or in a checkpoint of any number of ranks,
// once everything has been compared that says whether they are those of our model: what lies beside
// them (described_model.h), their tensors, and their head (engine/weights/tied_head.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/model/model_shape.h"
#include "engine/weights/weight_source.h"

namespace sluice::engine {

struct ModelWeights {
  std::unique_ptr<WeightSource> reader;
  std::vector<TensorSpec> parameters;  // the model's, in flat order
  std::vector<std::string> names;      // of each in the file
};

// How much of a head is compared with the embedding.
enum class HeadCheck : std::uint8_t {
  kBeginning,  // before a command's work: a few MiB show nearly every head that is another matrix
  kWhole,      // where the weights are used
};

// kInvalidArgument: another model's. `queue` must outlive it.
Result<ModelWeights> open_model_weights(aio::IoQueue& queue, const std::string& path,
                                        const ModelShape& shape, HeadCheck head);

}  // namespace sluice::engine
