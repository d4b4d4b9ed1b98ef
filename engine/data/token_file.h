// TokenFile: the tokens of one .bin file, read on demand.
//
// Formats: token_layout.h. The type of the tokens comes from the header, or else from the sidecar
// FILE.bin.json of tools/prepare, or else from Options::type. Without any of these it is uint16,
// and note() says so. open() fails if two of them disagree. A sidecar of version 2 has two files
// next to it, with documents and with the training mask (TokenDocuments).
//
// Reads use pread, not a mapping. A truncated file, or a failing drive, is then an error with a
// name instead of a SIGBUS, and the corpus does not count as this process's memory. A sequence of
// 1024 tokens takes a few microseconds from the page cache.
//
// Threads: all const calls from any thread. Move-only; the destructor closes the file.
// Errors:  sentences that begin with the path. kEndOfFile if the file has become shorter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/data/token_layout.h"

namespace sluice::data {

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

struct TokenSidecar;

class TokenFile {
 public:
  struct Options {
    std::optional<TokenType> type;  // for files that do not specify it; empty: see above
  };
  static Result<TokenFile> open(const std::string& path, const Options& options);

  const std::string& path() const { return file_->path(); }
  TokenType type() const { return layout_.type; }
  std::uint64_t token_count() const { return layout_.token_count; }
  // From the sidecar; 0 if there is none.
  std::uint64_t vocab_size() const { return vocab_size_; }
  // Null: the file is one text.
  const TokenDocuments* documents() const { return documents_.get(); }
  // Whether the type of the tokens is a guess; note() says which.
  bool assumes_type() const { return assumes_type_; }
  // A note for the user about how the file was interpreted; usually empty.
  const std::string& note() const { return note_; }

  // The tokens [first, first + out.size()), which must be in the file.
  Status copy(std::uint64_t first, std::span<std::int64_t> out) const;

  // kInvalidArgument names the first token outside a vocabulary of `vocab_size`.
  Status check_vocab(std::uint64_t vocab_size) const;

  // Distinguishes this text from others of the same length: a hash of type, count and sixteen
  // samples of the tokens, and of the whole mask. The same on every machine.
  Result<std::uint64_t> fingerprint() const;
  // A hash of every token: reads the whole file. The same on every machine. With a vocabulary, the
  // same pass also returns the error of check_vocab().
  static constexpr std::uint64_t kAnyVocab = ~std::uint64_t{0};
  Result<std::uint64_t> token_hash(std::uint64_t vocab_size = kAnyVocab) const;

 private:
  TokenFile(std::unique_ptr<aio::File> file, const TokenLayout& layout);
  Status find_layout(const Options& options);
  Status take_sidecar(const std::string& sidecar_path, std::optional<TokenType> wanted);
  Status take_raw(TokenType type);
  Status take_documents(const TokenSidecar& sidecar);
  Status read_bytes(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  // Checks a part of the tokens that begins at token `first`.
  Status check_part(std::uint64_t first, std::span<const std::byte> bytes,
                    std::uint64_t vocab_size) const;
  // All tokens in order, one part at a time: visit(first, bytes) returns a Status.
  template <typename Visit>
  Status scan(Visit visit) const;

  std::unique_ptr<aio::File> file_;
  std::uint64_t file_bytes_ = 0;
  TokenLayout layout_;
  std::uint64_t vocab_size_ = 0;
  std::unique_ptr<TokenDocuments> documents_;
  bool assumes_type_ = false;
  std::string note_;
};

}  // namespace sluice::data
