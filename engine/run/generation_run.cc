#include "engine/run/generation_run.h"

#include <ATen/Parallel.h>

#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/device/host.h"
#include "engine/families/make_model.h"
#include "engine/run/load_model.h"

namespace sluice::engine {

Result<std::unique_ptr<GenerationRun>> GenerationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<GenerationRun> run(new GenerationRun(config, plan));
  // In fp8 the scales of a text would differ from those of its next tokens.
  ModelOptions model = configured_model(config, plan.cuda);
  model.fp8 = {};
  run->model_ = make_model(model);
  at::set_num_threads(compute_threads(config));
  SLUICE_ASSIGN_OR_RETURN(run->parts_, Resources::create(config, run->plan_, run->model_->layout(),
                                                         {.use = Resources::Use::kForward}));
  run->feed_ = std::make_unique<TokenFeed>(config, run->plan_, *run->model_, *run->parts_);
  return run;
}

Status GenerationRun::load(CheckpointReader& checkpoint, const Progress& progress) {
  return load_model({*parts_, config_, model_->shape(), progress}, checkpoint);
}

}  // namespace sluice::engine
