#include "engine/train/evaluation_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "aio/log.h"
#include "engine/train/flat_ranges.h"
#include "engine/train/weights_file.h"
#include "offload/state_tiles.h"

namespace sluice::engine {
namespace {

using offload::ParamOffloader;

// `masters` is scratch memory.
Status load_unit(const UnitLayout& layout, WeightsFile& weights, offload::ParamForm form,
                 std::span<std::byte> parameters, std::vector<float>& masters) {
  for (std::uint64_t first = 0; first < layout.elements; first += offload::kTileElements) {
    const std::uint64_t elements = std::min(offload::kTileElements, layout.elements - first);
    masters.assign(elements, 0);
    SLUICE_RETURN_IF_ERROR(for_each_parameter(
        layout, first, elements,
        [&](const ParameterSpec& parameter, std::uint64_t from, std::uint64_t offset,
            std::uint64_t count) -> Status {
          return weights.read(parameter, from, std::span(masters).subspan(offset, count));
        }));
    const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form));
    offload::pack_parameters(form, masters, parameters.subspan(first * width).data());
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EvaluationRun>> EvaluationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<EvaluationRun> run(new EvaluationRun(config, plan));
  run->model_ = std::make_unique<GptModel>(GptModel::Options{.shape = gpt_shape(config.model)});
  SLUICE_ASSIGN_OR_RETURN(auto data, RunData::open(config, RunPurpose::kEvaluation));
  if (!data.has_validation()) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is no data to evaluate on: name token files (--data, data.validation), or "
                 "keep a part of the training data for it (data.validation_fraction)");
  }
  run->data_ = std::make_unique<RunData>(std::move(data));
  SLUICE_ASSIGN_OR_RETURN(run->drives_, open_drives(config, plan));
  const int threads = compute_threads(config);
  at::set_num_threads(threads);
  SLUICE_ASSIGN_OR_RETURN(run->executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(run->params_,
                          ParamOffloader::create(plan.params, {.reads = run->drives_.reads.get(),
                                                               .writes = run->drives_.writes.get(),
                                                               .executor = run->executor_.get()}));
  SLUICE_ASSIGN_OR_RETURN(run->parameters_,
                          make_unit_parameters(plan, *run->model_, *run->params_));
  return run;
}

EvaluationRun::~EvaluationRun() {
  parameters_.reset();
  const Status removed = params_ ? params_->remove() : Status();
  if (!removed.ok()) log::warning(removed.error().message());
}

Status EvaluationRun::load(const Progress& progress) {
  SLUICE_ASSIGN_OR_RETURN(auto weights,
                          WeightsFile::open(*drives_.reads, config_.model.init_from, *model_));
  std::uint64_t total = 0;
  for (int unit = 0; unit < model_->units(); ++unit) total += model_->layout(unit).elements;
  std::vector<float> masters;
  std::uint64_t done = 0;
  for (int unit = 0; unit < model_->units(); ++unit) {
    SLUICE_ASSIGN_OR_RETURN(const auto lease,
                            params_->acquire(unit, ParamOffloader::Access::kReplace));
    SLUICE_RETURN_IF_ERROR(
        load_unit(model_->layout(unit), weights, plan_.form, lease.bytes(), masters));
    done += model_->layout(unit).elements;
    if (progress) progress(done, total);
  }
  return params_->drain();
}

LossSum EvaluationRun::evaluate(const Progress& progress) {
  const std::uint64_t total = data_->validation_samples();
  const std::uint64_t group =
      plan_.evaluation_micro_batches * static_cast<std::uint64_t>(config_.batch.micro);
  LossSum loss;
  for (std::uint64_t first = 0; first < total; first += group) {
    const std::uint64_t samples = std::min(group, total - first);
    loss += evaluate_batch(
        {.model = model_.get(), .parameters = parameters_.get(), .params = params_.get()},
        data_->validation_batch(first, samples, compute_device(plan_)));
    if (progress) progress(first + samples, total);
  }
  return loss;
}

}  // namespace sluice::engine
