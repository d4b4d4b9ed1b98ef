#include "engine/run/evaluation_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/budget/configured_model.h"
#include "engine/device/host.h"
#include "engine/families/make_model.h"
#include "engine/run/load_model.h"

namespace sluice::engine {

Result<std::unique_ptr<EvaluationRun>> EvaluationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<EvaluationRun> run(new EvaluationRun(config, plan));
  run->model_ = make_model(configured_model(config, plan.cuda));
  SLUICE_ASSIGN_OR_RETURN(auto data, RunData::open(config, RunPurpose::kEvaluation));
  if (!data.has_validation()) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is no data to evaluate on: name token files (--data, data.validation), or "
                 "keep a part of the training data for it (data.validation_fraction)");
  }
  run->data_ = std::make_unique<RunData>(std::move(data));
  at::set_num_threads(compute_threads(config));
  SLUICE_ASSIGN_OR_RETURN(run->parts_, Resources::create(config, run->plan_, run->model_->layout(),
                                                         {.use = Resources::Use::kForward}));
  return run;
}

Status EvaluationRun::load(const Progress& progress) {
  return load_model({*parts_, config_, model_->shape(), progress});
}

Status EvaluationRun::load(CheckpointReader& checkpoint, const Progress& progress) {
  return load_model({*parts_, config_, model_->shape(), progress}, checkpoint);
}

LossSum EvaluationRun::evaluate(const Progress& progress) {
  const std::uint64_t total = data_->validation_samples();
  const std::uint64_t group =
      plan_.activations.evaluation_micro_batches * static_cast<std::uint64_t>(config_.batch.micro);
  LossSum loss;
  for (std::uint64_t first = 0; first < total; first += group) {
    const std::uint64_t samples = std::min(group, total - first);
    for (const LossSum& of_micro_batch : evaluate_batch(
             *parts_, *model_, data_->validation_batch(first, samples, compute_device(plan_))))
      loss += of_micro_batch;
    if (progress) progress(first + samples, total);
  }
  return loss;
}

// Adds the losses of the samples from `first` on.
void EvaluationRun::add_losses(std::uint64_t first, const StepBatch& batch,
                               DocumentLosses& losses) {
  const std::vector<at::Tensor> all = evaluate_tokens(*parts_, *model_, batch);
  for (std::size_t m = 0; m < all.size(); ++m) {
    const at::Tensor targets = batch.targets[m].cpu();
    const auto row_tokens = static_cast<std::size_t>(all[m].size(1));
    for (std::size_t row = 0; row < static_cast<std::size_t>(all[m].size(0)); ++row, ++first) {
      const std::span of_row(all[m].const_data_ptr<float>() + row * row_tokens, row_tokens);
      const std::span targets_of_row(targets.const_data_ptr<std::int64_t>() + row * row_tokens,
                                     row_tokens);
      std::size_t at = 0;
      for (const data::SamplePlace& place : data_->validation().places(first)) {
        const std::size_t predictions = place.tokens - 1;
        losses.add({.file = place.file,
                    .first_token = place.first_token,
                    .losses = of_row.subspan(at, predictions),
                    .targets = targets_of_row.subspan(at, predictions)});
        at += predictions;
      }
    }
  }
}

Result<EvaluationRun::Documents> EvaluationRun::evaluate_documents(const Progress& progress) {
  if (!data_->validation().has_documents())
    return Error(ErrorCode::kInvalidArgument,
                 data_->validation_corpus().files().front().path() +
                     " is one text: where documents begin is known of what tools/prepare --chat "
                     "wrote");
  if (config_.data.long_documents != config::LongDocuments::kSplit)
    return Error(ErrorCode::kInvalidArgument,
                 "data.long_documents is not \"split\", so documents longer than a sequence would "
                 "not be evaluated whole");
  const std::uint64_t total = data_->validation_samples();
  const std::uint64_t group =
      plan_.activations.evaluation_micro_batches * static_cast<std::uint64_t>(config_.batch.micro);
  DocumentLosses losses;
  for (std::uint64_t first = 0; first < total; first += group) {
    const std::uint64_t samples = std::min(group, total - first);
    add_losses(first, data_->validation_batch(first, samples, compute_device(plan_)), losses);
    if (progress) progress(first + samples, total);
  }
  Documents evaluated{.losses = losses.of_documents(data_->validation_corpus()),
                      .documents = data_->validation().documents(),
                      .files = {}};
  for (const data::TokenFile& file : data_->validation_corpus().files())
    evaluated.files.push_back(file.path());
  return evaluated;
}

}  // namespace sluice::engine
