#include "engine/exchange/stored_shape.h"

#include "engine/model/gpt_layout.h"

namespace sluice::engine {

std::map<std::string, std::int64_t> stored_model(const GptShape& shape) {
  return {{"layers", shape.layers},          {"hidden", shape.hidden}, {"heads", shape.heads},
          {"context", shape.context_tokens}, {"vocab", shape.vocab},   {"ffn_hidden", shape.ffn()}};
}

Result<GptShape> stored_shape(const StoredRun& run) {
  const auto number = [&run](const char* name) {
    const auto found = run.model.find(name);
    return found == run.model.end() ? 0 : found->second;
  };
  const GptShape shape{.layers = number("layers"),
                       .hidden = number("hidden"),
                       .heads = number("heads"),
                       .context_tokens = number("context"),
                       .vocab = number("vocab"),
                       .dropout = run.dropout,
                       .ffn_hidden = number("ffn_hidden")};
  const Status valid = validate(shape);
  if (!valid.ok()) return Error(ErrorCode::kCorrupt, valid.error().message());
  return shape;
}

std::vector<TensorSpec> parameter_specs(const GptShape& shape, DType dtype) {
  std::vector<TensorSpec> specs;
  for (const UnitLayout& layout : gpt_layouts(shape)) {
    for (const ParameterSpec& parameter : layout.parameters) {
      specs.push_back({.name = parameter.name,
                       .dtype = dtype,
                       .shape = {parameter.shape.begin(), parameter.shape.end()}});
    }
  }
  return specs;
}

}  // namespace sluice::engine
