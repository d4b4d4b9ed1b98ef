#include "engine/run/evaluation_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "aio/check.h"
#include "engine/budget/configured_model.h"
#include "engine/data/sample_source.h"
#include "engine/device/host.h"
#include "engine/families/make_model.h"
#include "engine/run/load_model.h"

namespace sluice::engine {

void DocumentLosses::add(const Piece& piece) {
  SLUICE_CHECK(piece.losses.size() == piece.targets.size(), "a loss for each target");
  PieceSum made{.file = piece.file, .first_token = piece.first_token, .targets = 0, .sum = 0};
  for (std::size_t i = 0; i < piece.targets.size(); ++i) {
    if (piece.targets[i] == data::kIgnoredSample) continue;
    made.sum += double{piece.losses[i]};
    ++made.targets;
  }
  if (made.targets > 0) pieces_.push_back(made);
}

std::vector<DocumentLoss> DocumentLosses::of_documents(const data::TokenCorpus& corpus) const {
  std::vector<PieceSum> pieces = pieces_;
  std::sort(pieces.begin(), pieces.end(), [](const PieceSum& a, const PieceSum& b) {
    return std::tie(a.file, a.first_token) < std::tie(b.file, b.first_token);
  });
  std::vector<DocumentLoss> documents;
  for (const PieceSum& piece : pieces) {
    const std::uint64_t number = corpus.files()[piece.file].documents()->holding(piece.first_token);
    if (documents.empty() || documents.back().file != piece.file ||
        documents.back().document != number)
      documents.push_back({.file = piece.file, .document = number});
    documents.back().targets += piece.targets;
    documents.back().sum += piece.sum;
  }
  return documents;
}

DocumentSummary summary_of(std::span<const DocumentLoss> documents) {
  SLUICE_CHECK(!documents.empty(), "documents to summarise");
  DocumentSummary summary;
  double sum = 0;
  double sum_of_means = 0;
  const auto comparable = [&](std::size_t i) {
    const double mean = documents[i].mean();
    return std::isfinite(mean) ? mean : std::numeric_limits<double>::infinity();
  };
  for (std::size_t i = 0; i < documents.size(); ++i) {
    sum += documents[i].sum;
    sum_of_means += documents[i].mean();
    summary.targets += documents[i].targets;
    if (comparable(i) < comparable(summary.best)) summary.best = i;
    if (comparable(i) > comparable(summary.worst)) summary.worst = i;
  }
  summary.mean = sum / static_cast<double>(summary.targets);
  summary.mean_of_documents = sum_of_means / static_cast<double>(documents.size());
  return summary;
}

Result<std::unique_ptr<EvaluationRun>> EvaluationRun::create(const config::Config& config,
                                                             const MemoryPlan& plan) {
  std::unique_ptr<EvaluationRun> run(new EvaluationRun(config, plan));
  run->model_ = make_model(configured_model(config, plan.cuda));
  SLUICE_ASSIGN_OR_RETURN(auto data, RunData::open(config, RunPurpose::kEvaluation));
  if (!data.has_validation()) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is no data to evaluate on: name token files (--data, data.validation), or "
                 "reserve a part of the training data (data.validation_fraction)");
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
    return Error(
        ErrorCode::kInvalidArgument,
        data_->validation_corpus().files().front().path() +
            " has no document boundaries: only files that tools/prepare --chat wrote have them");
  if (config_.data.long_documents != config::LongDocuments::kSplit)
    return Error(ErrorCode::kInvalidArgument,
                 "data.long_documents must be \"split\" here, or documents longer than a sequence "
                 "are not evaluated completely");
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
