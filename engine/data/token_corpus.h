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

}  // namespace sluice::data
