#include "engine/train/weights_file.h"

#include <utility>

#include "engine/exchange/gpt2_weights.h"

namespace sluice::engine {

std::vector<TensorSpec> weight_specs(const ModelLayout& model, DType dtype) {
  std::vector<TensorSpec> specs;
  for (int unit = 0; unit < model.units(); ++unit) {
    for (const ParameterSpec& parameter : model.layout(unit).parameters) {
      specs.push_back({.name = parameter.name,
                       .dtype = dtype,
                       .shape = {parameter.shape.begin(), parameter.shape.end()}});
    }
  }
  return specs;
}

Result<WeightsFile> WeightsFile::open(aio::IoQueue& queue, const std::string& path,
                                      const GptShape& shape) {
  SLUICE_ASSIGN_OR_RETURN(Gpt2Weights weights,
                          open_gpt2_weights(queue, path, shape, HeadCheck::kWhole));
  WeightsFile file;
  file.reader_ = std::move(weights.reader);
  for (std::size_t i = 0; i < weights.names.size(); ++i)
    file.name_in_file_[weights.parameters[i].name] = std::move(weights.names[i]);
  return file;
}

}  // namespace sluice::engine
