#include "engine/run/load_model.h"

#include <span>
#include <string>
#include <utility>

#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/run/stored_state.h"
#include "engine/runtime/load_parameters.h"
#include "engine/runtime/weights_file.h"

namespace sluice::engine {
namespace {

aio::IoQueue& reads_of(const LoadModel& load) { return *load.to.drives().reads; }
BaseParameters* base_of(const LoadModel& load) { return load.to.parameters().base(); }

Status load_trained(const LoadModel& load, const ReadParameter& read) {
  const ModelLayout& model = load.to.model();
  return load_parameters(
      {.model = &model,
       .form = load.to.plan().types.form,
       .params = &load.to.parameters().trained(),
       .read = read,
       .progress = base_of(load) != nullptr ? nullptr : shown(load.progress, model)});
}

Status load_base(const LoadModel& load) {
  return base_of(load)->load(load.config, reads_of(load), load.shape,
                             shown(load.progress, load.to.model().base()));
}

// Whether they have the same weights. Only training reads the coefficient of a balance loss.
bool is_same_model(ModelShape one, ModelShape other) {
  for (ModelShape* const shape : {&one, &other})
    shape->numbers.erase(std::string(kBalanceCoefficient));
  return stored_model(one) == stored_model(other) && one.family == other.family &&
         one.numbers == other.numbers && one.lists == other.lists;
}

}  // namespace

Status load_model(const LoadModel& load) {
  const config::Config& config = load.config;
  if (base_of(load) == nullptr) {
    auto weights = WeightsFile::open(reads_of(load), config.model.init_from, load.shape);
    if (!weights.ok()) return std::move(weights).error().with_context("model.init_from");
    return load_trained(
        load, [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
          return weights->read(parameter, first, values);
        });
  }
  auto adapters =
      AdapterWeights::open(reads_of(load), config.lora.adapter,
                           ModelOptions{.shape = load.shape, .lora = config.lora.recipe()});
  if (!adapters.ok()) return std::move(adapters).error().with_context("recipe.lora.adapter");
  SLUICE_RETURN_IF_ERROR(load_base(load));
  return load_trained(
      load, [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
        return adapters->read(parameter.name, first, values);
      });
}

Status load_model(const LoadModel& load, CheckpointReader& checkpoint) {
  const StoredRun& run = checkpoint.state().run;
  SLUICE_ASSIGN_OR_RETURN(const ModelShape stored, stored_shape(run));
  if (!is_same_model(stored, load.shape)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint and the configuration describe different models: leave out --set "
                 "model..., or give the configuration of the checkpoint's run");
  }
  SLUICE_ASSIGN_OR_RETURN(const LoraRecipe recipe, stored_recipe(run, load.shape));
  if (!(recipe == load.config.lora.recipe()))
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint and the configuration describe different adapters: leave out "
                 "--set recipe.lora..., or give the configuration of the checkpoint's run");
  if (BaseParameters* const base = base_of(load); base != nullptr) {
    SLUICE_RETURN_IF_ERROR(load_base(load));
    SLUICE_RETURN_IF_ERROR(check_base(run, base->fingerprint(), load.config.model.init_from));
  }
  return load_trained(
      load, [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
        return checkpoint.read_master(parameter.name, first, values);
      });
}

}  // namespace sluice::engine
