#include "engine/run/run_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "engine/model/ops/cuda_kernels.h"
#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

std::string hex(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, number);
  return text.data();
}

}  // namespace

RunData::RunData(const config::Config& config, RunSamples samples)
    : micro_batch_(config.batch.micro),
      sequence_tokens_(config.data.sequence_tokens),
      validation_batches_(
          static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1))),
      samples_(std::move(samples)) {}

Result<RunData> RunData::open(const config::Config& config, RunPurpose purpose) {
  SLUICE_ASSIGN_OR_RETURN(RunSamples samples,
                          RunSamples::open(config, {.training = purpose == RunPurpose::kTraining}));
  RunData run(config, std::move(samples));
  if (run.samples_.training() == nullptr) return run;
  const data::TokenCorpus& corpus = run.samples_.training_corpus();
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t text, corpus.fingerprint());
  run.order_ =
      hex(run.training().order_id()) + "-" + hex(text) + "-" + hex(run.samples_.training_hash());
  return run;
}

Status RunData::check(const config::Config& config) { return count_samples(config).status(); }

Result<std::uint64_t> RunData::count_samples(const config::Config& config) {
  SLUICE_ASSIGN_OR_RETURN(const RunSamples samples,
                          RunSamples::open(config, {.reads_all_tokens = false}));
  return samples.training()->count();
}

std::uint64_t RunData::validation_samples() const {
  const std::uint64_t all = validation().count();
  const auto rows = static_cast<std::uint64_t>(micro_batch_);
  return validation_batches_ < all / rows ? validation_batches_ * rows : all;
}

StepBatch RunData::training_batch(std::vector<std::uint64_t> firsts, at::Device device) const {
  StepBatch batch;
  for (const std::uint64_t first : firsts) read(training(), first, micro_batch_, device, batch);
  batch.source_of = [this, firsts = std::move(firsts)](std::size_t micro_batch) {
    const std::uint64_t first = firsts[micro_batch];
    return source_of(first, first + static_cast<std::uint64_t>(micro_batch_));
  };
  return batch;
}

// For example "train.bin from tokens 1024, 77; more.bin from token 0, 1025 tokens each".
std::string RunData::source_of(std::uint64_t begin, std::uint64_t end) const {
  std::map<std::uint32_t, std::vector<std::uint64_t>> positions;
  for (std::uint64_t k = begin; k < end; ++k)
    for (const data::SamplePlace& place : training().places(k))
      positions[place.file].push_back(place.first_token);
  std::string text;
  for (const auto& [file, tokens] : positions) {
    text += (text.empty() ? "" : "; ") + samples_.training_corpus().files()[file].path() +
            (tokens.size() > 1 ? " from tokens " : " from token ");
    for (std::size_t i = 0; i < tokens.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(tokens[i]);
  }
  return training().has_documents()
             ? text + ", to the end of their documents"
             : text + ", " + std::to_string(sequence_tokens_ + 1) + " tokens each";
}

StepBatch RunData::validation_batch(std::uint64_t first, std::uint64_t samples,
                                    at::Device device) const {
  StepBatch batch;
  const std::uint64_t end = first + samples;
  for (const auto rows = static_cast<std::uint64_t>(micro_batch_); first < end; first += rows)
    read(validation(), first, static_cast<std::int64_t>(std::min(rows, end - first)), device,
         batch);
  return batch;
}

void RunData::read(const data::SampleSource& source, std::uint64_t first, std::int64_t rows,
                   at::Device device, StepBatch& batch) const {
  static_assert(data::kIgnoredSample == kIgnoredTarget);
  const std::int64_t length = sequence_tokens_;
  const at::Tensor inputs = at::empty({rows, length}, at::kLong);
  const at::Tensor targets = at::empty({rows, length}, at::kLong);
  const at::Tensor positions = at::empty({rows, length}, at::kLong);
  std::vector<std::int32_t> starts;
  std::int64_t counted = 0;
  for (std::int64_t number = 0; number < rows; ++number) {
    const auto of_row = [&](const at::Tensor& all) {
      return std::span(all.data_ptr<std::int64_t>() + number * length,
                       static_cast<std::size_t>(length));
    };
    data::SampleRow row{.inputs = of_row(inputs),
                        .targets = of_row(targets),
                        .positions = of_row(positions),
                        .begins = {}};
    throw_if_error(source.read(first++, row));
    counted += row.counted;
    for (const std::int64_t begin : row.begins)
      starts.push_back(static_cast<std::int32_t>(number * length + begin));
  }
  batch.inputs.push_back(inputs.to(device));
  batch.targets.push_back(targets.to(device));
  if (!source.has_documents()) return;
  batch.counted_targets.push_back(counted);
  starts.push_back(static_cast<std::int32_t>(rows * length));
  Documents documents;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    documents.lengths.push_back(starts[i + 1] - starts[i]);
    documents.longest = std::max(documents.longest, documents.lengths.back());
  }
  documents.positions = positions.to(device);
  documents.starts = at::tensor(starts, at::kInt).to(device);
  batch.documents.push_back(std::move(documents));
}

}  // namespace sluice::engine
