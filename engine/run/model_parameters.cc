#include "engine/run/model_parameters.h"

#include <optional>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/run/stored_state.h"
#include "engine/run/weights_file.h"

namespace sluice::engine {

using offload::ParamOffloader;

ModelParameters::ModelParameters(const MemoryPlan& plan, const ModelLayout& model,
                                 const Environment& environment)
    : model_(model), form_(plan.types.form), reads_(*environment.drives->reads) {}

Result<std::unique_ptr<ModelParameters>> ModelParameters::create(const MemoryPlan& plan,
                                                                 const ModelLayout& model,
                                                                 const Environment& environment) {
  std::unique_ptr<ModelParameters> made(new ModelParameters(plan, model, environment));
  if (plan.base) {
    SLUICE_ASSIGN_OR_RETURN(made->base_,
                            BaseParameters::create(plan, model,
                                                   {.drives = environment.drives,
                                                    .executor = environment.base_executor,
                                                    .trace = environment.trace,
                                                    .ranks = environment.ranks,
                                                    .cuda_ranks = environment.cuda_ranks}));
  }
  SLUICE_ASSIGN_OR_RETURN(
      made->trained_,
      ParamOffloader::create(param_options(plan), {.reads = environment.drives->reads.get(),
                                                   .writes = environment.drives->writes.get(),
                                                   .executor = environment.executor}));
  SLUICE_ASSIGN_OR_RETURN(made->units_,
                          make_unit_parameters(plan, model, *made->trained_, environment.ranks,
                                               environment.cuda_ranks, environment.trace));
  if (made->base_) made->units_ = made->base_->beside(std::move(made->units_));
  return made;
}

ModelParameters::~ModelParameters() {
  end_passes();
  const Status removed = trained_ ? trained_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

Status ModelParameters::load_trained(const ReadParameter& read, const Progress& progress) {
  return load_parameters({.model = &model_,
                          .form = form_,
                          .params = trained_.get(),
                          .read = read,
                          .progress = base_ ? nullptr : shown(progress, model_)});
}

Status ModelParameters::load_base(const config::Config& config, const ModelShape& shape,
                                  const Progress& progress) {
  return base_->load(config, reads_, shape, shown(progress, model_.base()));
}

Status ModelParameters::load(const config::Config& config, const ModelShape& shape,
                             const Progress& progress) {
  if (!base_) {
    auto weights = WeightsFile::open(reads_, config.model.init_from, shape);
    if (!weights.ok()) return std::move(weights).error().with_context("model.init_from");
    return load_trained(
        [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
          return weights->read(parameter, first, values);
        },
        progress);
  }
  auto adapters = AdapterWeights::open(reads_, config.lora.adapter,
                                       ModelOptions{.shape = shape, .lora = config.lora.recipe()});
  if (!adapters.ok()) return std::move(adapters).error().with_context("recipe.lora.adapter");
  SLUICE_RETURN_IF_ERROR(load_base(config, shape, progress));
  return load_trained(
      [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
        return adapters->read(parameter.name, first, values);
      },
      progress);
}

Status ModelParameters::load(CheckpointReader& checkpoint, const config::Config& config,
                             const ModelShape& shape, const Progress& progress) {
  const StoredRun& run = checkpoint.state().run;
  SLUICE_ASSIGN_OR_RETURN(const ModelShape stored, stored_shape(run));
  if (!(stored_model(stored) == stored_model(shape)) || stored.family != shape.family ||
      stored.numbers != shape.numbers) {
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint is of a different model than the configuration's: leave out --set "
                 "model..., or give the configuration of its run");
  }
  SLUICE_ASSIGN_OR_RETURN(const LoraRecipe recipe, stored_recipe(run, shape));
  if (!(recipe == config.lora.recipe()))
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint's adapters are of another recipe than the configuration's: leave "
                 "out --set recipe.lora..., or give the configuration of its run");
  if (base_) {
    SLUICE_RETURN_IF_ERROR(load_base(config, shape, progress));
    SLUICE_RETURN_IF_ERROR(check_base(run, base_->fingerprint(), config.model.init_from));
  }
  return load_trained(
      [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
        return checkpoint.read_master(parameter.name, first, values);
      },
      progress);
}

}  // namespace sluice::engine
