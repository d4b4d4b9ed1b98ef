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

#include "aio/log.h"
#include "engine/model/ops/cuda_kernels.h"
#include "engine/step/train_error.h"

namespace sluice::engine {
namespace {

data::TokenFile::Options file_options(config::TokenType type) {
  data::TokenFile::Options options;
  if (type == config::TokenType::kUint16) options.type = data::TokenType::kUint16;
  if (type == config::TokenType::kUint32) options.type = data::TokenType::kUint32;
  return options;
}

data::LongDocuments longer_of(config::LongDocuments longer) {
  switch (longer) {
    case config::LongDocuments::kCut:
      return data::LongDocuments::kCut;
    case config::LongDocuments::kDrop:
      return data::LongDocuments::kDrop;
    case config::LongDocuments::kSplit:
      return data::LongDocuments::kSplit;
  }
  return data::LongDocuments::kCut;
}

// Whether its files have documents: all of them, or none.
Result<bool> has_documents(const data::TokenCorpus& corpus) {
  const data::TokenFile& first = corpus.files().front();
  for (const data::TokenFile& file : corpus.files()) {
    if ((file.documents() == nullptr) == (first.documents() == nullptr)) continue;
    const bool of_first = first.documents() != nullptr;
    return Error(ErrorCode::kInvalidArgument,
                 (of_first ? first : file).path() + " has documents, and " +
                     (of_first ? file : first).path() +
                     " is one text: train on files of one kind at a time");
  }
  return first.documents() != nullptr;
}

// The documents of the files; with a fraction, the last of each are the validation's, and one at
// the least.
struct DocumentSplit {
  std::vector<data::DocumentRange> train;
  std::vector<data::DocumentRange> validation;
};
DocumentSplit split_documents(const data::TokenCorpus& corpus, double fraction) {
  DocumentSplit split;
  for (std::uint32_t number = 0; const data::TokenFile& file : corpus.files()) {
    const std::uint64_t all = file.documents()->count();
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(all) * fraction);
    const std::uint64_t kept = std::min(wanted, all - 1);
    split.train.push_back({.file = number, .first = 0, .last = all - kept});
    if (kept > 0) split.validation.push_back({.file = number, .first = all - kept, .last = all});
    ++number;
  }
  const auto largest =
      std::max_element(split.train.begin(), split.train.end(),
                       [](const auto& a, const auto& b) { return a.last < b.last; });
  if (fraction > 0 && split.validation.empty() && largest->last > 1) {
    --largest->last;
    split.validation.push_back(
        {.file = largest->file, .first = largest->last, .last = largest->last + 1});
  }
  return split;
}

void say_outcome(const char* which, const data::SampleSource* source) {
  if (source == nullptr || !source->has_documents()) return;
  const std::string text = std::string(which) + ": " + source->outcome();
  if (source->leaves_out())
    log::warning(text);
  else
    log::info(text);
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
      longer_(longer_of(config.data.long_documents)),
      validation_batches_(
          static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1))) {
  corpora_.reserve(2);  // what is made of one refers to it
}

Result<RunData> RunData::open(const config::Config& config, RunPurpose purpose) {
  RunData run(config);
  SLUICE_RETURN_IF_ERROR(run.make_sources(config, purpose));
  return run;
}

Status RunData::check(const config::Config& config) { return count_samples(config).status(); }

Result<std::uint64_t> RunData::count_samples(const config::Config& config) {
  RunData run(config);
  run.reads_all_tokens_ = false;
  SLUICE_RETURN_IF_ERROR(run.make_sources(config, RunPurpose::kTraining));
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

Status RunData::make_sources(const config::Config& config, RunPurpose purpose) {
  const bool own_files = !config.data.validation.empty();
  if (purpose == RunPurpose::kTraining || !own_files)
    SLUICE_RETURN_IF_ERROR(add_corpus(config, "data.train", config.data.train));
  if (own_files)
    SLUICE_RETURN_IF_ERROR(add_corpus(config, "data.validation", config.data.validation));
  SLUICE_RETURN_IF_ERROR(split(config, purpose));
  if (reads_all_tokens_) {
    say_outcome("training data", training_.get());
    say_outcome("validation data", validation_.get());
  }
  if (!training_) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t text, corpora_.front().fingerprint());
  order_ = hex(training_->order_id()) + "-" + hex(text);
  return {};
}

// The whole of a corpus.
Result<std::unique_ptr<data::SampleSource>> RunData::source(
    const data::TokenCorpus& corpus, std::optional<std::uint64_t> seed) const {
  const data::SourceOptions options = {
      .sequence_tokens = static_cast<std::uint64_t>(sequence_tokens_),
      .shuffle_seed = seed,
      .longer = longer_};
  SLUICE_ASSIGN_OR_RETURN(const bool documents, has_documents(corpus));
  if (documents) return data::document_source(corpus, split_documents(corpus, 0).train, options);
  return data::window_source(corpus, corpus.whole(), options);
}

Status RunData::split(const config::Config& config, RunPurpose purpose) {
  const bool trains = purpose == RunPurpose::kTraining;
  const double fraction = config.data.validation_fraction;
  const auto seed = static_cast<std::uint64_t>(config.data.shuffle_seed);
  if (!config.data.validation.empty() || !(fraction > 0)) {
    if (trains) {
      SLUICE_ASSIGN_OR_RETURN(training_, source(corpora_.front(), seed));
    }
    if (!config.data.validation.empty()) {
      SLUICE_ASSIGN_OR_RETURN(validation_, source(corpora_.back(), std::nullopt));
    }
    return {};
  }
  const data::TokenCorpus& corpus = corpora_.front();
  data::SourceOptions options = {.sequence_tokens = static_cast<std::uint64_t>(sequence_tokens_),
                                 .shuffle_seed = std::nullopt,
                                 .longer = longer_};
  SLUICE_ASSIGN_OR_RETURN(const bool documents, has_documents(corpus));
  if (documents) {
    const DocumentSplit parts = split_documents(corpus, fraction);
    if (!parts.validation.empty()) {
      SLUICE_ASSIGN_OR_RETURN(validation_,
                              data::document_source(corpus, parts.validation, options));
    }
    options.shuffle_seed = seed;
    if (trains) {
      SLUICE_ASSIGN_OR_RETURN(training_, data::document_source(corpus, parts.train, options));
    }
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(
      const data::TokenSplit parts,
      corpus.split({.validation_fraction = fraction, .sequence_tokens = options.sequence_tokens}));
  SLUICE_ASSIGN_OR_RETURN(validation_, data::window_source(corpus, parts.validation, options));
  options.shuffle_seed = seed;
  if (trains) {
    SLUICE_ASSIGN_OR_RETURN(training_, data::window_source(corpus, parts.train, options));
  }
  return {};
}

std::uint64_t RunData::validation_samples() const {
  const std::uint64_t all = validation_->count();
  const auto rows = static_cast<std::uint64_t>(micro_batch_);
  return validation_batches_ < all / rows ? validation_batches_ * rows : all;
}

StepBatch RunData::training_batch(std::uint64_t first, std::uint64_t samples,
                                  at::Device device) const {
  StepBatch batch = read(*training_, first, samples, device);
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
  for (std::uint64_t k = begin; k < end; ++k)
    for (const data::SamplePlace& place : training_->places(k))
      positions[place.file].push_back(place.first_token);
  std::string text;
  for (const auto& [file, tokens] : positions) {
    text += (text.empty() ? "" : "; ") + corpora_.front().files()[file].path() +
            (tokens.size() > 1 ? " from tokens " : " from token ");
    for (std::size_t i = 0; i < tokens.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(tokens[i]);
  }
  return training_->has_documents()
             ? text + ", to the end of their documents"
             : text + ", " + std::to_string(sequence_tokens_ + 1) + " tokens each";
}

StepBatch RunData::validation_batch(std::uint64_t first, std::uint64_t samples,
                                    at::Device device) const {
  return read(*validation_, first, samples, device);
}

StepBatch RunData::read(const data::SampleSource& source, std::uint64_t first,
                        std::uint64_t samples, at::Device device) const {
  static_assert(data::kIgnoredSample == kIgnoredTarget);
  const std::int64_t length = sequence_tokens_;
  StepBatch batch;
  for (const std::uint64_t end = first + samples; first < end;) {
    const std::int64_t rows = std::min(micro_batch_, static_cast<std::int64_t>(end - first));
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
      must(source.read(first++, row));
      counted += row.counted;
      for (const std::int64_t begin : row.begins)
        starts.push_back(static_cast<std::int32_t>(number * length + begin));
    }
    batch.inputs.push_back(inputs.to(device));
    batch.targets.push_back(targets.to(device));
    if (!source.has_documents()) continue;
    batch.counted_targets.push_back(counted);
    starts.push_back(static_cast<std::int32_t>(rows * length));
    Documents documents;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i)
      documents.longest = std::max<std::int64_t>(documents.longest, starts[i + 1] - starts[i]);
    documents.positions = positions.to(device);
    documents.starts = at::tensor(starts, at::kInt).to(device);
    batch.documents.push_back(std::move(documents));
  }
  return batch;
}

}  // namespace sluice::engine
