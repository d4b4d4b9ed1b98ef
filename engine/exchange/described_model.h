// Which model weights are of, where a file beside them says so: the config.json of a Hugging Face
// folder, the config.json of a run's directory, or the manifest of a checkpoint. Tensors alone do
// not tell: a model with another activation, another epsilon or other heads has the same ones.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The folder that weights lie in: `weights` itself, or the one of a file or an index.
std::string folder_of_weights(aio::IoQueue& queue, const std::string& weights);

// Where there is no such folder: that, and the command that downloads a model into it. Empty where
// there is one, or nobody can say, or the path is a file's.
std::string absent_model(const std::string& folder);
// The same as a further sentence at the end of a message.
std::string download_hint(const std::string& folder);

// kInvalidArgument: they are of a model that Sluice does not compute, or of another shape than
// `wanted`, with what is different. kCorrupt: the file cannot be read. Ok where nothing says it.
Status check_described_model(aio::IoQueue& queue, const std::string& weights,
                             const ModelShape& wanted);

}  // namespace sluice::engine
