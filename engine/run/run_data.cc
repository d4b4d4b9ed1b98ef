#include "engine/run/run_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

data::TokenFile::Options file_options(config::TokenType type) {
  data::TokenFile::Options options;
  if (type == config::TokenType::kUint16) options.type = data::TokenType::kUint16;
  if (type == config::TokenType::kUint32) options.type = data::TokenType::kUint32;
  return options;
}

std::string hex(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, number);
  return text.data();
}

}  // namespace

RunData::RunData(const config::Config& config)
    : micro_batch_(config.batch.micro),
      sequence_tokens_(config.data.sequence_tokens),
      validation_batches_(
          static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1))) {}

Result<RunData> RunData::open(const config::Config& config, RunPurpose purpose) {
  RunData run(config);
  SLUICE_RETURN_IF_ERROR(run.make_samplers(config, purpose));
  return run;
}

Status RunData::check(const config::Config& config) { return count_samples(config).status(); }

Result<std::uint64_t> RunData::count_samples(const config::Config& config) {
  RunData run(config);
  run.reads_all_tokens_ = false;
  SLUICE_RETURN_IF_ERROR(run.make_samplers(config, RunPurpose::kTraining));
  return run.samples_per_epoch();
}

Status RunData::add_corpus(const config::Config& config, const char* key,
                           const std::vector<std::string>& paths) {
  auto corpus = data::TokenCorpus::open(paths, file_options(config.data.token_type));
  if (!corpus.ok()) return std::move(corpus).error().with_context(key);
  if (reads_all_tokens_) {
    for (const data::TokenFile& file : corpus->files())
      SLUICE_RETURN_IF_ERROR(file.check_vocab(static_cast<std::uint64_t>(config.model.vocab)));
  }
  corpora_.push_back(*std::move(corpus));
  return {};
}

Status RunData::make_samplers(const config::Config& config, RunPurpose purpose) {
  const auto sequence = static_cast<std::uint64_t>(sequence_tokens_);
  const bool own_files = !config.data.validation.empty();
  std::vector<data::TokenRange> training;
  std::vector<data::TokenRange> validation;
  if (purpose == RunPurpose::kTraining || !own_files) {
    SLUICE_RETURN_IF_ERROR(add_corpus(config, "data.train", config.data.train));
    training = corpora_.front().whole();
  }
  if (own_files) {
    SLUICE_RETURN_IF_ERROR(add_corpus(config, "data.validation", config.data.validation));
    validation = corpora_.back().whole();
  } else if (config.data.validation_fraction > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        auto split, corpora_.front().split({.validation_fraction = config.data.validation_fraction,
                                            .sequence_tokens = sequence}));
    training = std::move(split.train);
    validation = std::move(split.validation);
  }
  if (purpose == RunPurpose::kTraining) {
    const data::ShuffledSampler::Options options{
        .sequence_tokens = sequence, .seed = static_cast<std::uint64_t>(config.data.shuffle_seed)};
    SLUICE_ASSIGN_OR_RETURN(auto sampler, data::ShuffledSampler::create(training, options));
    training_ = std::make_unique<data::ShuffledSampler>(std::move(sampler));
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t text, corpora_.front().fingerprint());
    order_ = hex(training_->order_id()) + "-" + hex(text);
  }
  if (validation.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(auto sampler, data::SequentialSampler::create(validation, sequence));
  validation_ = std::make_unique<data::SequentialSampler>(std::move(sampler));
  return {};
}

std::uint64_t RunData::validation_samples() const {
  const std::uint64_t all = validation_->count();
  const auto rows = static_cast<std::uint64_t>(micro_batch_);
  return validation_batches_ < all / rows ? validation_batches_ * rows : all;
}

StepBatch RunData::training_batch(std::uint64_t first, std::uint64_t samples,
                                  at::Device device) const {
  StepBatch batch = read(
      corpora_.front(), [&](std::uint64_t k) { return training_->at(k); }, first, samples, device);
  batch.source_of = [this, first, samples](std::size_t micro_batch) {
    const auto rows = static_cast<std::uint64_t>(micro_batch_);
    const std::uint64_t begin = first + micro_batch * rows;
    return source_of(begin, std::min(begin + rows, first + samples));
  };
  return batch;
}

// "train.bin from tokens 1024, 77; more.bin from token 0, 1025 tokens each"
std::string RunData::source_of(std::uint64_t begin, std::uint64_t end) const {
  std::map<std::uint32_t, std::vector<std::uint64_t>> positions;
  for (std::uint64_t k = begin; k < end; ++k) {
    const data::Sample sample = training_->at(k);
    positions[sample.file].push_back(sample.first_token);
  }
  std::string text;
  for (const auto& [file, tokens] : positions) {
    text += (text.empty() ? "" : "; ") + corpora_.front().files()[file].path() +
            (tokens.size() > 1 ? " from tokens " : " from token ");
    for (std::size_t i = 0; i < tokens.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(tokens[i]);
  }
  return text + ", " + std::to_string(sequence_tokens_ + 1) + " tokens each";
}

StepBatch RunData::validation_batch(std::uint64_t first, std::uint64_t samples,
                                    at::Device device) const {
  return read(
      corpora_.back(), [&](std::uint64_t k) { return validation_->at(k); }, first, samples, device);
}

StepBatch RunData::read(const data::TokenCorpus& corpus, const SampleAt& sample_at,
                        std::uint64_t first, std::uint64_t samples, at::Device device) const {
  const std::int64_t length = sequence_tokens_;
  std::vector<std::int64_t> window(static_cast<std::size_t>(length) + 1);
  StepBatch batch;
  for (std::uint64_t end = first + samples; first < end;) {
    const std::int64_t rows = std::min(micro_batch_, static_cast<std::int64_t>(end - first));
    const at::Tensor inputs = at::empty({rows, length}, at::kLong);
    const at::Tensor targets = at::empty({rows, length}, at::kLong);
    for (std::int64_t row = 0; row < rows; ++row) {
      must(corpus.read(sample_at(first++), window));
      std::copy_n(window.data(), length, inputs.data_ptr<std::int64_t>() + row * length);
      std::copy_n(window.data() + 1, length, targets.data_ptr<std::int64_t>() + row * length);
    }
    batch.inputs.push_back(inputs.to(device));
    batch.targets.push_back(targets.to(device));
  }
  return batch;
}

}  // namespace sluice::engine
