#include "engine/data/token_corpus.h"

#include <algorithm>
#include <cmath>

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
                 "the validation fraction must be at least 0 and less than 1, and is " +
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
                     " tokens on either side; prepare more text, or shorten the sequences");
  }
  return split;
}

Status TokenCorpus::read(const Sample& sample, std::span<std::int64_t> out) const {
  SLUICE_CHECK(sample.file < files_.size(), "a sample of this corpus");
  return files_[sample.file].copy(sample.first_token, out);
}

}  // namespace sluice::data
