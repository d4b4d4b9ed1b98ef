#include "engine/train/weights_file.h"

#include <utility>

#include "engine/exchange/described_model.h"
#include "engine/weights/gpt2_names.h"
#include "engine/weights/tied_head.h"

namespace sluice::engine {

std::vector<TensorSpec> weight_specs(const GptModel& model, DType dtype) {
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
                                      const GptModel& model) {
  SLUICE_RETURN_IF_ERROR(check_described_model(queue, path, model.shape()));
  WeightsFile file;
  SLUICE_ASSIGN_OR_RETURN(file.reader_, SafetensorsReader::open(queue, path));
  const std::vector<TensorSpec> wanted = weight_specs(model, DType::kF32);
  auto names = match_gpt2_parameters(file.reader_->tensors(), wanted);
  if (!names.ok()) return std::move(names).error().with_context(path);
  const Status tied = check_tied_head(*file.reader_);
  if (!tied.ok()) return Error(tied.error()).with_context(path);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    file.name_in_file_[wanted[i].name] = std::move((*names)[i]);
  return file;
}

}  // namespace sluice::engine
