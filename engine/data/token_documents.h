// TokenDocuments: where the documents of a token file begin, and which of its tokens are trained
// on. They are in FILE.bin.documents and FILE.bin.mask, which tools/prepare --chat writes next to
// FILE.bin.
//
//   documents   little-endian uint64, ascending: the first token of each, then the number of tokens
//   mask        a bit for each token, from the lowest bit of a byte on: 1 if it is trained on, as
//               the target of the token before it
//
// Memory:  8 bytes a document; the mask is read on demand.
// Threads: all const calls from any thread.
// Errors:  sentences that begin with the path. kCorrupt if the two files do not match the tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"

namespace sluice::data {

class TokenDocuments {
 public:
  struct Expected {
    std::uint64_t documents = 0;
    std::uint64_t tokens = 0;
    std::uint64_t trained_tokens = 0;
  };
  // Reads both files completely.
  static Result<TokenDocuments> open(const std::string& token_path, const Expected& expected);

  std::uint64_t count() const { return starts_.size() - 1; }
  std::uint64_t begin(std::uint64_t document) const { return starts_[document]; }
  std::uint64_t end(std::uint64_t document) const { return starts_[document + 1]; }
  // The document that contains a token of the file.
  std::uint64_t holding(std::uint64_t token) const;

  // Trained tokens in the mask.
  std::uint64_t trained_tokens() const { return trained_tokens_; }
  // A hash of the mask: with another mask, training learns another text.
  std::uint64_t mask_hash() const { return mask_hash_; }
  // Whether each of the tokens [first, first + out.size()) is trained on.
  Status copy_mask(std::uint64_t first, std::span<bool> out) const;

 private:
  TokenDocuments(std::vector<std::uint64_t> starts, std::unique_ptr<aio::File> mask)
      : starts_(std::move(starts)), mask_(std::move(mask)) {}
  Status read_mask(const Expected& expected);

  std::vector<std::uint64_t> starts_;
  std::unique_ptr<aio::File> mask_;
  std::uint64_t mask_hash_ = 0;
  std::uint64_t trained_tokens_ = 0;
};

}  // namespace sluice::data
