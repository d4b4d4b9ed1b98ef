#include "engine/data/document_pieces.h"

#include <algorithm>
#include <memory>
#include <span>

namespace sluice::data {
namespace {

// A file's mask, read in blocks, since documents are consecutive.
class MaskReader {
 public:
  explicit MaskReader(const TokenDocuments& documents) : documents_(documents) {}

  // The number of trained tokens in [begin, end).
  Result<std::uint64_t> trained_among(std::uint64_t begin, std::uint64_t end) {
    std::uint64_t trained = 0;
    while (begin < end) {
      if (begin < first_ || begin >= first_ + count_) SLUICE_RETURN_IF_ERROR(load(begin));
      const std::uint64_t until = std::min(end, first_ + count_);
      trained += static_cast<std::uint64_t>(
          std::count(mask_.get() + (begin - first_), mask_.get() + (until - first_), true));
      begin = until;
    }
    return trained;
  }

 private:
  static constexpr std::uint64_t kTokens = 1 << 16;

  Status load(std::uint64_t first) {
    first_ = first;
    count_ = std::min(kTokens, documents_.end(documents_.count() - 1) - first);
    return documents_.copy_mask(first, std::span(mask_.get(), count_));
  }

  const TokenDocuments& documents_;
  std::unique_ptr<bool[]> mask_ =
      std::make_unique<bool[]>(kTokens);  // a plain array, which vector<bool> does not contain
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
};

Status add_piece(MaskReader& mask, std::uint32_t number, std::uint64_t begin, std::uint64_t end,
                 DocumentPieces& to) {
  constexpr std::uint64_t kFewest = 2;  // a token, and one predicted from it
  std::uint64_t trained = 0;
  if (end - begin >= kFewest) {
    SLUICE_ASSIGN_OR_RETURN(trained, mask.trained_among(begin + 1, end));
  }
  if (trained == 0) {
    ++to.untrained;
    return {};
  }
  to.trained_tokens += trained;
  to.pieces.push_back(
      {.first_token = begin, .tokens = static_cast<std::uint32_t>(end - begin), .file = number});
  return {};
}

}  // namespace

Status add_pieces(const TokenFile& file, std::uint32_t number, std::uint64_t first,
                  std::uint64_t last, const PieceOptions& options, DocumentPieces& to) {
  const TokenDocuments& documents = *file.documents();
  MaskReader mask(documents);
  const std::uint64_t most = options.sequence_tokens + 1;
  for (std::uint64_t document = first; document < last; ++document) {
    const std::uint64_t begin = documents.begin(document);
    const std::uint64_t end = documents.end(document);
    ++to.documents;
    if (end - begin <= most) {
      SLUICE_RETURN_IF_ERROR(add_piece(mask, number, begin, end, to));
      continue;
    }
    ++to.longer;
    if (options.longer == LongDocuments::kDrop) continue;
    if (options.longer == LongDocuments::kCut) {
      SLUICE_RETURN_IF_ERROR(add_piece(mask, number, begin, begin + most, to));
      continue;
    }
    for (std::uint64_t at = begin; at + 1 < end; at += options.sequence_tokens)
      SLUICE_RETURN_IF_ERROR(add_piece(mask, number, at, std::min(at + most, end), to));
  }
  return {};
}

}  // namespace sluice::data
