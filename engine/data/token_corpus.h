// TokenCorpus: several token files as one text, split into training and validation data.
//
// Files keep the given order, which a sampler's position depends on. A split takes the last
// contiguous part of each file for validation; to validate on separate files, open a second corpus
// and use whole().
//
// Threads: all const calls from any thread.
// Errors:  those of TokenFile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "engine/data/sampler.h"
#include "engine/data/token_file.h"

namespace sluice::data {

struct TokenSplit {
  std::vector<TokenRange> train;
  std::vector<TokenRange> validation;  // empty if no fraction was requested
};

class TokenCorpus {
 public:
  static Result<TokenCorpus> open(std::span<const std::string> paths,
                                  const TokenFile::Options& options);

  std::span<const TokenFile> files() const { return files_; }
  std::uint64_t token_count() const;
  // A hash over all files; see TokenFile::fingerprint().
  Result<std::uint64_t> fingerprint() const;
  // A hash over all files; see TokenFile::token_hash().
  Result<std::uint64_t> token_hash(std::uint64_t vocab_size = TokenFile::kAnyVocab) const;

  std::vector<TokenRange> whole() const;

  struct SplitOptions {
    double validation_fraction = 0;  // in [0, 1); 0: train on everything
    std::uint64_t sequence_tokens = 0;
  };
  // Takes that fraction of each file's tokens for validation, and at least one window. A file too
  // short to keep a training window too is used only for training. kInvalidArgument if no file has
  // a validation part.
  Result<TokenSplit> split(const SplitOptions& options) const;

  // Reads sequence `sample`: out.size() is T + 1, inputs out[0 .. T), targets out[1 .. T + 1).
  Status read(const Sample& sample, std::span<std::int64_t> out) const;

 private:
  explicit TokenCorpus(std::vector<TokenFile> files) : files_(std::move(files)) {}

  std::vector<TokenFile> files_;
};

// TokenCensus: statistics from one pass over a token file.
//
// Documents are those of TokenDocuments. In a file that is one text they end with the end-of-text
// token, if that is known. A target is a predicted token that counts. In one text that is every
// token but the first; with a mask, every masked-in token except the first of a document.
//
// Memory:  8 bytes a document.
// Errors:  those of TokenFile.
struct TokenCensus {
  std::uint64_t tokens = 0;
  std::uint64_t targets = 0;
  std::uint64_t largest = 0;                   // token
  std::uint64_t largest_at = 0;                // the first position that has it
  std::vector<std::uint64_t> lengths;          // of documents, in tokens, ascending; empty: unknown
  std::uint64_t documents_without_target = 0;  // in files with a mask
};

using CensusProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// `end_of_text`: for a file that is one text.
Result<TokenCensus> take_census(const TokenFile& file, std::optional<std::int64_t> end_of_text,
                                const CensusProgress& progress);

// The number of lengths in each power-of-two range: 1, 2 to 3, 4 to 7, and so on up to the longest.
// Ranges below the shortest are left out.
struct LengthRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count = 0;
};
std::vector<LengthRange> histogram_of(const std::vector<std::uint64_t>& ascending_lengths);

}  // namespace sluice::data
