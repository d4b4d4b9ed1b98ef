// TokenFile: the tokens of one .bin file, read on demand.
//
// Formats: token_layout.h. A header decides what the tokens are; without one, the sidecar
// FILE.bin.json that tools/prepare writes; without that, the caller's `type`; else uint16, and
// note() says so. Where two of them are present and disagree, open() refuses. A sidecar of version
// 2 has files of documents and of what is trained on beside it (token_documents.h).
//
// Reads use pread, not a mapping. A file that is truncated, or a drive that fails, during training
// is then an error with a name instead of a SIGBUS, and the corpus does not count as this process's
// memory. A sequence of 1024 tokens costs a few microseconds from the page cache.
//
// Threads: all const calls from any thread. Move-only; the destructor closes the file.
// Errors:  sentences that begin with the path. kEndOfFile when the file has become shorter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/data/token_documents.h"
#include "engine/data/token_layout.h"

namespace sluice::data {

struct TokenSidecar;

class TokenFile {
 public:
  struct Options {
    std::optional<TokenType> type;  // of a file that does not say so itself; nothing: see above
  };
  static Result<TokenFile> open(const std::string& path, const Options& options);

  const std::string& path() const { return file_->path(); }
  TokenType type() const { return layout_.type; }
  std::uint64_t token_count() const { return layout_.token_count; }
  // From the sidecar; 0 when there is none.
  std::uint64_t vocab_size() const { return vocab_size_; }
  // Of files that have them; null: the file is one text.
  const TokenDocuments* documents() const { return documents_.get(); }
  // Nothing says of which type its tokens are; note() says of which they are taken to be.
  bool assumes_type() const { return assumes_type_; }
  // What the user should know about how the file was interpreted; mostly empty.
  const std::string& note() const { return note_; }

  // The tokens [first, first + out.size()), which must lie within the file.
  Status copy(std::uint64_t first, std::span<std::int64_t> out) const;

  // kInvalidArgument names the first token that is not an id of a vocabulary of `vocab_size`.
  Status check_vocab(std::uint64_t vocab_size) const;

  // Distinguishes this text from another of the same length: a hash of type, count and sixteen
  // samples of the tokens, and of all of a mask. The same on every machine.
  Result<std::uint64_t> fingerprint() const;
  // A hash of every token: reads the whole file. The same on every machine. With a vocabulary in
  // the same pass what check_vocab() refuses.
  static constexpr std::uint64_t kAnyVocab = ~std::uint64_t{0};
  Result<std::uint64_t> token_hash(std::uint64_t vocab_size = kAnyVocab) const;

 private:
  TokenFile(std::unique_ptr<aio::File> file, const TokenLayout& layout);
  Status find_layout(const Options& options);
  Status take_sidecar(const std::string& sidecar_path, std::optional<TokenType> wanted);
  Status take_raw(TokenType type);
  Status take_documents(const TokenSidecar& sidecar);
  Status read_bytes(std::uint64_t offset_bytes, std::span<std::byte> out) const;
  // Of a part of the tokens, the first of which is number `first`.
  Status check_part(std::uint64_t first, std::span<const std::byte> bytes,
                    std::uint64_t vocab_size) const;
  // All tokens in order, a part at a time: visit(first, bytes) returns a Status.
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
