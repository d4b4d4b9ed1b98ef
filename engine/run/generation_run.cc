#include "engine/run/generation_run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/device/host.h"
#include "engine/families/make_model.h"
#include "engine/model/torch_types.h"
#include "engine/run/load_model.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

Result<std::unique_ptr<GenerationRun>> GenerationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<GenerationRun> run(new GenerationRun(config, plan));
  run->model_ = make_model(configured_model(config, plan.cuda));
  at::set_num_threads(compute_threads(config));
  SLUICE_ASSIGN_OR_RETURN(run->parts_, Resources::create(config, run->plan_, run->model_->layout(),
                                                         {.use = Resources::Use::kForward}));
  run->cache_ =
      std::make_unique<KvCache>(run->model_->layout(), generation_context(config),
                                at::TensorOptions()
                                    .dtype(scalar_type(offload::compute_type(plan.types.form)))
                                    .device(compute_device(plan)));
  return run;
}

Status GenerationRun::load(CheckpointReader& checkpoint, const Progress& progress) {
  return load_model({*parts_, config_, model_->shape(), progress}, checkpoint);
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
  UnitParameters& units = parts_->parameters().units();
  expect_passes({&units, &parts_->parameters().trained()}, program);
  FetchedUnits fetched(units);
  std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
  const auto count = static_cast<std::int64_t>(ids.size());
  at::Tensor flow =
      at::from_blob(ids.data(), {1, count}, at::kLong).to(compute_device(plan_)).clone();
  at::Tensor numbers;
  for (const auto& [op, unit, wave] : program) {
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
    if (op == offload::StepOp::kForward) must(units.prefetch(unit + 1));
  }
  cache_->advance(count);
  const auto* const first = numbers.const_data_ptr<float>();
  return {first, first + numbers.numel()};
}

}  // namespace sluice::engine
