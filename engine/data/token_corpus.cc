#include "engine/data/token_corpus.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <span>

#include "aio/check.h"
#include "aio/split_mix.h"

namespace sluice::data {

Result<TokenCorpus> TokenCorpus::open(std::span<const std::string> paths,
                                      const TokenFile::Options& options) {
  if (paths.empty()) return Error(ErrorCode::kInvalidArgument, "no token file is named");
  std::vector<TokenFile> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(TokenFile file, TokenFile::open(path, options));
    files.push_back(std::move(file));
  }
  return TokenCorpus(std::move(files));
}

std::uint64_t TokenCorpus::token_count() const {
  std::uint64_t count = 0;
  for (const TokenFile& file : files_) count += file.token_count();
  return count;
}

Result<std::uint64_t> TokenCorpus::fingerprint() const {
  std::uint64_t hash = files_.size();
  for (const TokenFile& file : files_) {
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t of_file, file.fingerprint());
    hash = aio::SplitMix(hash ^ of_file).next();
  }
  return hash;
}

Result<std::uint64_t> TokenCorpus::token_hash(std::uint64_t vocab_size) const {
  std::uint64_t hash = files_.size();
  for (const TokenFile& file : files_) {
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t of_file, file.token_hash(vocab_size));
    hash = aio::SplitMix(hash ^ of_file).next();
  }
  return hash;
}

std::vector<TokenRange> TokenCorpus::whole() const {
  std::vector<TokenRange> ranges;
  ranges.reserve(files_.size());
  for (const TokenFile& file : files_) {
    ranges.push_back({static_cast<std::uint32_t>(ranges.size()), 0, file.token_count()});
  }
  return ranges;
}

Result<TokenSplit> TokenCorpus::split(const SplitOptions& options) const {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the validation fraction must be at least 0 and less than 1, but is " +
                     std::to_string(fraction));
  }
  TokenSplit split;
  const std::uint64_t window_tokens = options.sequence_tokens + 1;
  for (const TokenRange& range : whole()) {
    const auto wanted =
        static_cast<std::uint64_t>(std::floor(static_cast<double>(range.end) * fraction));
    const std::uint64_t validation = fraction > 0 ? std::max(wanted, window_tokens) : 0;
    if (validation == 0 || range.end < validation || range.end - validation < window_tokens) {
      split.train.push_back(range);
      continue;
    }
    split.train.push_back({range.file, 0, range.end - validation});
    split.validation.push_back({range.file, range.end - validation, range.end});
  }
  if (fraction > 0 && split.validation.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no file of the data (" + std::to_string(token_count()) +
                     " tokens) is long enough to be split with a validation fraction of " +
                     std::to_string(fraction) + ": sequences of " +
                     std::to_string(options.sequence_tokens) + " need " +
                     std::to_string(window_tokens) +
                     " tokens in each part; prepare more text, or shorten the sequences");
  }
  return split;
}

Status TokenCorpus::read(const Sample& sample, std::span<std::int64_t> out) const {
  SLUICE_CHECK(sample.file < files_.size(), "a sample of this corpus");
  return files_[sample.file].copy(sample.first_token, out);
}

namespace {

constexpr std::uint64_t kTokensAtOnce = 1 << 16;

// For one text, whose documents end with a token.
class EndCounter {
 public:
  explicit EndCounter(std::optional<std::int64_t> end) : end_(end) {}

  void add(std::span<const std::int64_t> tokens) {
    if (!end_) return;
    for (const std::int64_t token : tokens) {
      ++length_;
      if (token != *end_) continue;
      lengths_.push_back(length_);
      length_ = 0;
    }
  }
  std::vector<std::uint64_t> finish() {
    if (length_ > 0) lengths_.push_back(length_);
    return std::move(lengths_);
  }

 private:
  std::optional<std::int64_t> end_;
  std::uint64_t length_ = 0;
  std::vector<std::uint64_t> lengths_;
};

// For a file with documents and a mask.
class MaskCounter {
 public:
  explicit MaskCounter(const TokenDocuments& documents) : documents_(documents) {}

  // Adds tokens from `first` on, directly after the previous ones.
  Status add(std::uint64_t first, std::uint64_t count) {
    const std::span mask(mask_.get(), count);
    SLUICE_RETURN_IF_ERROR(documents_.copy_mask(first, mask));
    for (std::uint64_t at = first; at < first + count; ++at) {
      if (at == documents_.end(document_)) end_document();
      if (at > documents_.begin(document_) && mask[at - first]) ++of_document_;
    }
    return {};
  }
  void finish(TokenCensus& census) {
    end_document();
    census.targets = targets_;
    census.documents_without_target = without_;
    for (std::uint64_t i = 0; i < documents_.count(); ++i)
      census.lengths.push_back(documents_.end(i) - documents_.begin(i));
  }

 private:
  void end_document() {
    targets_ += of_document_;
    without_ += of_document_ == 0 ? 1 : 0;
    of_document_ = 0;
    ++document_;
  }

  const TokenDocuments& documents_;
  std::unique_ptr<bool[]> mask_ = std::make_unique<bool[]>(kTokensAtOnce);
  std::uint64_t document_ = 0;
  std::uint64_t of_document_ = 0;
  std::uint64_t targets_ = 0;
  std::uint64_t without_ = 0;
};

void note_largest(std::uint64_t first, std::span<const std::int64_t> tokens, TokenCensus& census) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(tokens[i]);
    if (token <= census.largest) continue;
    census.largest = token;
    census.largest_at = first + i;
  }
}

}  // namespace

Result<TokenCensus> take_census(const TokenFile& file, std::optional<std::int64_t> end_of_text,
                                const CensusProgress& progress) {
  TokenCensus census{.tokens = file.token_count()};
  EndCounter ends(file.documents() == nullptr ? end_of_text : std::nullopt);
  std::optional<MaskCounter> masks;
  if (file.documents() != nullptr) masks.emplace(*file.documents());
  std::vector<std::int64_t> tokens;
  for (std::uint64_t first = 0; first < census.tokens; first += tokens.size()) {
    tokens.resize(std::min(kTokensAtOnce, census.tokens - first));
    SLUICE_RETURN_IF_ERROR(file.copy(first, tokens));
    note_largest(first, tokens, census);
    ends.add(tokens);
    if (masks) SLUICE_RETURN_IF_ERROR(masks->add(first, tokens.size()));
    if (progress) progress(first + tokens.size(), census.tokens);
  }
  if (masks) {
    masks->finish(census);
  } else {
    census.targets = census.tokens - 1;
    census.lengths = ends.finish();
  }
  std::sort(census.lengths.begin(), census.lengths.end());
  return census;
}

std::vector<LengthRange> histogram_of(const std::vector<std::uint64_t>& ascending_lengths) {
  std::vector<LengthRange> ranges;
  if (ascending_lengths.empty()) return ranges;
  for (std::uint64_t from = std::bit_floor(ascending_lengths.front());; from *= 2) {
    const std::uint64_t to = from - 1 + from;
    const auto begin = std::lower_bound(ascending_lengths.begin(), ascending_lengths.end(), from);
    const auto end = std::upper_bound(begin, ascending_lengths.end(), to);
    ranges.push_back({from, to, static_cast<std::uint64_t>(end - begin)});
    if (end == ascending_lengths.end()) return ranges;
  }
}

}  // namespace sluice::data
