#include "engine/samples/run_samples.h"

#include <algorithm>
#include <utility>

#include "aio/log.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kValidation = "data.validation";

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

// Whether the files have documents. An error if only some of them do.
Result<bool> has_documents(const data::TokenCorpus& corpus) {
  const data::TokenFile& first = corpus.files().front();
  for (const data::TokenFile& file : corpus.files()) {
    if ((file.documents() == nullptr) == (first.documents() == nullptr)) continue;
    const bool of_first = first.documents() != nullptr;
    return Error(ErrorCode::kInvalidArgument,
                 (of_first ? first : file).path() + " has document boundaries, but " +
                     (of_first ? file : first).path() +
                     " has none: train on files of one kind at a time");
  }
  return first.documents() != nullptr;
}

// The documents of the files. With a fraction, the last ones of each file are for validation, at
// least one.
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

// All samples of a corpus.
Result<std::unique_ptr<data::SampleSource>> source_of(const data::TokenCorpus& corpus,
                                                      const data::SourceOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const bool documents, has_documents(corpus));
  if (documents) return data::document_source(corpus, split_documents(corpus, 0).train, options);
  return data::window_source(corpus, corpus.whole(), options);
}

}  // namespace

data::TokenFile::Options file_options(const config::Data& data) {
  data::TokenFile::Options options;
  if (data.token_type == config::TokenType::kUint16) options.type = data::TokenType::kUint16;
  if (data.token_type == config::TokenType::kUint32) options.type = data::TokenType::kUint32;
  return options;
}

Result<RunSamples> RunSamples::open(const config::Config& config, const Wanted& wanted) {
  RunSamples samples;
  samples.corpora_.reserve(2);  // sources refer to the elements
  const bool own_files = !config.data.validation.empty();
  const Reads reads = wanted.reads_all_tokens ? Reads::kTokens : Reads::kNothing;
  const bool hashes = wanted.reads_all_tokens && wanted.training;
  if (wanted.training || !own_files)
    SLUICE_RETURN_IF_ERROR(
        samples.add_corpus(config, "data.train", config.data.train, hashes ? Reads::kHash : reads));
  if (own_files)
    SLUICE_RETURN_IF_ERROR(samples.add_corpus(config, kValidation, config.data.validation, reads));
  SLUICE_RETURN_IF_ERROR(samples.split(config, wanted.training));
  if (wanted.reads_all_tokens) {
    say_outcome("training data", samples.training());
    say_outcome("validation data", samples.validation());
  }
  return samples;
}

Status RunSamples::add_corpus(const config::Config& config, std::string_view key,
                              const std::vector<std::string>& paths, Reads reads) {
  auto corpus = data::TokenCorpus::open(paths, file_options(config.data));
  if (!corpus.ok()) {
    const bool can_do_without = key == kValidation && corpus.error().code() == ErrorCode::kNotFound;
    return std::move(corpus).error().with_context(key).with_suffix(
        can_do_without ? "; tools/prepare writes no val.bin if there are too few texts; to train "
                         "without validation: --set 'data.validation=[]'"
                       : "");
  }
  const auto vocab = static_cast<std::uint64_t>(config.model.vocab);
  for (const data::TokenFile& file : corpus->files()) {
    // Any bytes would be valid tokens of this vocabulary.
    if (file.assumes_type() && vocab > data::max_token_of(file.type()) + 1)
      return Error(ErrorCode::kInvalidArgument,
                   std::string(key) + ": " + file.path() + " has no header and no " + file.path() +
                       ".json, and tokens of a vocabulary of " + std::to_string(vocab) +
                       " may be uint16 or uint32: copy its .json there too, or set data.dtype");
    if (reads == Reads::kNothing) continue;
    if (!file.note().empty()) log::warning(file.note());
    if (reads == Reads::kTokens) SLUICE_RETURN_IF_ERROR(file.check_vocab(vocab));
  }
  if (reads == Reads::kHash) {
    SLUICE_ASSIGN_OR_RETURN(training_hash_, corpus->token_hash(vocab));
  }
  corpora_.push_back(*std::move(corpus));
  return {};
}

Status RunSamples::split(const config::Config& config, bool trains) {
  const double fraction = config.data.validation_fraction;
  const auto seed = static_cast<std::uint64_t>(config.data.shuffle_seed);
  data::SourceOptions in_order = {
      .sequence_tokens = static_cast<std::uint64_t>(config.data.sequence_tokens),
      .shuffle_seed = std::nullopt,
      .longer = longer_of(config.data.long_documents)};
  data::SourceOptions shuffled = in_order;
  shuffled.shuffle_seed = seed;
  if (!config.data.validation.empty() || !(fraction > 0)) {
    if (trains) {
      SLUICE_ASSIGN_OR_RETURN(training_, source_of(corpora_.front(), shuffled));
    }
    if (!config.data.validation.empty()) {
      SLUICE_ASSIGN_OR_RETURN(validation_, source_of(corpora_.back(), in_order));
    }
    return {};
  }
  const data::TokenCorpus& corpus = corpora_.front();
  SLUICE_ASSIGN_OR_RETURN(const bool documents, has_documents(corpus));
  if (documents) {
    const DocumentSplit parts = split_documents(corpus, fraction);
    if (!parts.validation.empty()) {
      SLUICE_ASSIGN_OR_RETURN(validation_,
                              data::document_source(corpus, parts.validation, in_order));
    }
    if (trains) {
      SLUICE_ASSIGN_OR_RETURN(training_, data::document_source(corpus, parts.train, shuffled));
    }
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(
      const data::TokenSplit parts,
      corpus.split({.validation_fraction = fraction, .sequence_tokens = in_order.sequence_tokens}));
  SLUICE_ASSIGN_OR_RETURN(validation_, data::window_source(corpus, parts.validation, in_order));
  if (trains) {
    SLUICE_ASSIGN_OR_RETURN(training_, data::window_source(corpus, parts.train, shuffled));
  }
  return {};
}

}  // namespace sluice::engine
