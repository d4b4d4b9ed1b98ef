#include "engine/runtime/weights_file.h"

#include <utility>

#include "engine/exchange/model_weights.h"

namespace sluice::engine {

Result<WeightsFile> WeightsFile::open(aio::IoQueue& queue, const std::string& path,
                                      const ModelShape& shape) {
  SLUICE_ASSIGN_OR_RETURN(ModelWeights weights,
                          open_model_weights(queue, path, shape, HeadCheck::kWhole));
  WeightsFile file;
  file.reader_ = std::move(weights.reader);
  for (std::size_t i = 0; i < weights.names.size(); ++i)
    file.name_in_file_[weights.parameters[i].name] = std::move(weights.names[i]);
  return file;
}

}  // namespace sluice::engine
