// Finds the model that weights belong to, if a file next to them describes it. That is the
// config.json of a Hugging Face folder or of a run's directory, or the manifest of a checkpoint.
// Tensors alone are not enough: models with another activation, epsilon or number of heads have the
// same tensors.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The folder of `weights`: the path itself, or the folder of a file or an index.
std::string folder_of_weights(aio::IoQueue& queue, const std::string& weights);

// Whether the text is a model's name on the hub: OWNER/NAME or OWNER/NAME@REVISION. A path that
// exists is none, nor is one in an existing folder or in a folder that is usual for models.
bool is_hub_name(const std::string& text);

// The model that a folder in the hub's cache belongs to: of "models--Qwen--Qwen3-0.6B" the name
// "Qwen/Qwen3-0.6B", and of ".../snapshots/COMMIT" in it the commit. Both are empty elsewhere.
struct HubModel {
  std::string name;
  std::string revision;
};
HubModel model_in_hub_cache(const std::string& folder);

// If the folder does not exist: says so, with the command that downloads a model into it. Empty if
// it exists, if that is unknown, or if the path is a file's.
std::string absent_model(const std::string& folder);
// The same, as an additional sentence at the end of a message.
std::string download_hint(const std::string& folder);

// kInvalidArgument: they belong to a model that Sluice does not support, or of another shape than
// `wanted`; lists the differences. kCorrupt: the file cannot be read. Ok if no file describes them.
Status check_described_model(aio::IoQueue& queue, const std::string& weights,
                             const ModelShape& wanted);

}  // namespace sluice::engine
