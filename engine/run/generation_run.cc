#include "engine/run/generation_run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "aio/log.h"
#include "engine/budget/configured_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/make_model.h"
#include "engine/model/torch_types.h"
#include "engine/run/load_parameters.h"
#include "engine/run/stored_state.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

Result<std::unique_ptr<GenerationRun>> GenerationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<GenerationRun> run(new GenerationRun(config, plan));
  run->model_ = make_model(configured_model(config, plan.cuda));
  SLUICE_ASSIGN_OR_RETURN(run->drives_, open_drives(config, plan));
  const int threads = compute_threads(config);
  at::set_num_threads(threads);
  SLUICE_ASSIGN_OR_RETURN(run->executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(
      run->params_,
      offload::ParamOffloader::create(param_options(plan), {.reads = run->drives_.reads.get(),
                                                            .writes = run->drives_.writes.get(),
                                                            .executor = run->executor_.get()}));
  SLUICE_ASSIGN_OR_RETURN(run->parameters_,
                          make_unit_parameters(plan, run->model_->layout(), *run->params_));
  if (plan.base) {
    SLUICE_ASSIGN_OR_RETURN(run->base_, BaseParameters::create(plan, run->model_->layout(),
                                                               {.drives = &run->drives_,
                                                                .executor = run->executor_.get()}));
    run->parameters_ = run->base_->beside(std::move(run->parameters_));
  }
  run->cache_ =
      std::make_unique<KvCache>(run->model_->layout(), generation_context(config),
                                at::TensorOptions()
                                    .dtype(scalar_type(offload::compute_type(plan.types.form)))
                                    .device(compute_device(plan)));
  return run;
}

GenerationRun::~GenerationRun() {
  parameters_.reset();
  const Status removed = params_ ? params_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

Status GenerationRun::load(CheckpointReader& checkpoint, const Progress& progress) {
  SLUICE_ASSIGN_OR_RETURN(const ModelShape stored, stored_shape(checkpoint.state().run));
  if (!(stored_model(stored) == stored_model(model_->shape())) ||
      stored.family != model_->shape().family || stored.numbers != model_->shape().numbers) {
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint is of a different model than the configuration's: leave out --set "
                 "model...");
  }
  SLUICE_ASSIGN_OR_RETURN(const LoraRecipe recipe,
                          stored_recipe(checkpoint.state().run, model_->shape()));
  if (!(recipe == config_.lora.recipe()))
    return Error(ErrorCode::kInvalidArgument,
                 "the checkpoint's adapters are of another recipe than the configuration's: leave "
                 "out --set recipe.lora...");
  if (base_) {
    SLUICE_RETURN_IF_ERROR(base_->load(config_, *drives_.reads, model_->shape(),
                                       shown(progress, model_->layout().base())));
    SLUICE_RETURN_IF_ERROR(
        check_base(checkpoint.state().run, base_->fingerprint(), config_.model.init_from));
  }
  return load_parameters(
      {.model = &model_->layout(),
       .form = plan_.types.form,
       .params = params_.get(),
       .read =
           [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) {
             return checkpoint.read_master(parameter.name, first, values);
           },
       .progress = base_ ? nullptr : shown(progress, model_->layout())});
}

std::vector<float> GenerationRun::feed(std::span<const std::int64_t> tokens) {
  const auto capacity = static_cast<std::size_t>(cache_->capacity());
  if (seen_.size() + tokens.size() <= capacity) {
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    return pass(tokens);
  }
  std::vector<std::int64_t> all = std::move(seen_);
  const bool slides = !all.empty();
  all.insert(all.end(), tokens.begin(), tokens.end());
  const std::size_t kept = slides ? std::max<std::size_t>(capacity / 2, 1) : capacity;
  seen_.assign(all.end() - static_cast<std::ptrdiff_t>(kept), all.end());
  cache_->clear();
  return pass(seen_);
}

std::vector<float> GenerationRun::pass(std::span<const std::int64_t> tokens) {
  const at::NoGradGuard no_tape;
  const ModelLayout& layout = model_->layout();
  const offload::StepProgram program = offload::forward_pass(program_units(layout));
  expect_passes({parameters_.get(), params_.get()}, program);
  FetchedUnits fetched(*parameters_);
  std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
  const auto count = static_cast<std::int64_t>(ids.size());
  at::Tensor flow =
      at::from_blob(ids.data(), {1, count}, at::kLong).to(compute_device(plan_)).clone();
  at::Tensor numbers;
  for (const auto& [op, unit] : program) {
    if (op == offload::StepOp::kFetch || op == offload::StepOp::kFetchAgain) {
      fetched.acquire(unit);
      continue;
    }
    const UnitViews views = fetched.views(layout, unit);
    if (op == offload::StepOp::kForward) {
      flow = model_->unit(unit).extend(views, flow, *cache_);
    } else {
      const at::Tensor logits = model_->head().logits(views, flow, 1);
      numbers = logits.flatten().to(at::kCPU, at::kFloat).contiguous();
    }
    fetched.release();
    if (op == offload::StepOp::kForward) must(parameters_->prefetch(unit + 1));
  }
  cache_->advance(count);
  const auto* const first = numbers.const_data_ptr<float>();
  return {first, first + numbers.numel()};
}

}  // namespace sluice::engine
