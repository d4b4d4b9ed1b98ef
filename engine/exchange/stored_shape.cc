#include "engine/exchange/stored_shape.h"

#include <utility>

#include "engine/families/families.h"

namespace sluice::engine {

std::map<std::string, std::int64_t> stored_model(const ModelShape& shape) {
  return {{"layers", shape.layers},          {"hidden", shape.hidden}, {"heads", shape.heads},
          {"context", shape.context_tokens}, {"vocab", shape.vocab},   {"ffn_hidden", shape.ffn()}};
}

void store_shape(const ModelShape& shape, StoredRun& run) {
  run.family = shape.family;
  run.model = stored_model(shape);
  run.dropout = shape.dropout;
  run.family_numbers = shape.numbers;
  run.family_lists = shape.lists;
  for (const ShapeNumber& number : family_of(shape).numbers()) {
    const auto found = run.family_numbers.find(std::string(number.name()));
    if (found != run.family_numbers.end() && !number.should_serialise(found->second))
      run.family_numbers.erase(found);
  }
}

std::string family_number_text(const std::string& family, const std::string& name, double value) {
  if (const ModelFamily* const of = find_family(family))
    for (const ShapeNumber& number : of->numbers())
      if (number.name() == name) return number.text(value);
  return ShapeNumber{}.text(value);
}

StoredRun complete(StoredRun run) {
  ModelShape shape;
  shape.family = run.family;
  shape.numbers = std::move(run.family_numbers);
  run.family_numbers = complete(std::move(shape)).numbers;
  return run;
}

Result<ModelShape> stored_shape(const StoredRun& run) {
  if (run.family == kModuleFamily)
    return Error(ErrorCode::kUnsupported,
                 "its model is a module of a Python program: load it there (sluice.initialize(), "
                 "load_checkpoint())");
  if (find_family(run.family) == nullptr)
    return Error(ErrorCode::kUnsupported, "its model is of the family " + run.family +
                                              ", which this version of Sluice does not support");
  const auto number = [&run](const char* name) {
    const auto found = run.model.find(name);
    return found == run.model.end() ? 0 : found->second;
  };
  const ModelShape shape = complete({.layers = number("layers"),
                                     .hidden = number("hidden"),
                                     .heads = number("heads"),
                                     .context_tokens = number("context"),
                                     .vocab = number("vocab"),
                                     .dropout = run.dropout,
                                     .ffn_hidden = number("ffn_hidden"),
                                     .family = run.family,
                                     .numbers = run.family_numbers,
                                     .lists = run.family_lists});
  const Status valid = validate(shape);
  if (!valid.ok()) return Error(ErrorCode::kCorrupt, valid.error().message());
  return shape;
}

Result<LoraRecipe> stored_recipe(const StoredRun& run, const ModelShape& shape) {
  if (!run.adapters) return LoraRecipe{};
  const LoraRecipe recipe = {.rank = run.adapters->rank,
                             .alpha = run.adapters->alpha,
                             .rank_stabilised = run.adapters->rank_stabilised,
                             .dropout = run.adapters->dropout,
                             .base_bits = run.adapters->base_bits,
                             .double_quant = run.adapters->double_quant,
                             .targets = run.adapters->targets};
  const Status valid = validate(recipe, shape);
  if (!valid.ok()) return Error(ErrorCode::kCorrupt, valid.error().message());
  if (!recipe.exists()) return Error(ErrorCode::kCorrupt, "its adapters have no rank");
  return recipe;
}

StoredAdapters stored_adapters(const LoraRecipe& recipe) {
  return {.rank = recipe.rank,
          .alpha = recipe.alpha,
          .rank_stabilised = recipe.rank_stabilised,
          .dropout = recipe.dropout,
          .base_bits = recipe.base_bits,
          .double_quant = recipe.double_quant,
          .targets = recipe.targets};
}

std::vector<TensorSpec> parameter_specs(const ModelLayout& model, DType dtype) {
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

std::vector<TensorSpec> parameter_specs(const ModelShape& shape, DType dtype) {
  return parameter_specs(model_layout({.shape = shape}), dtype);
}

}  // namespace sluice::engine
