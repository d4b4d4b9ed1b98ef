#include "engine/data/document_pieces.h"

#include <algorithm>
#include <array>

namespace sluice::data {
namespace {

// Of tokens [begin, end): those that are trained on.
Result<std::uint64_t> trained_among(const TokenDocuments& documents, std::uint64_t begin,
                                    std::uint64_t end) {
  std::array<bool, 4096> mask{};
  std::uint64_t trained = 0;
  while (begin < end) {
    const std::uint64_t count = std::min<std::uint64_t>(mask.size(), end - begin);
    const std::span some = std::span(mask).first(count);
    SLUICE_RETURN_IF_ERROR(documents.copy_mask(begin, some));
    trained += static_cast<std::uint64_t>(std::count(some.begin(), some.end(), true));
    begin += count;
  }
  return trained;
}

Status add_piece(const TokenDocuments& documents, std::uint32_t number, std::uint64_t begin,
                 std::uint64_t end, DocumentPieces& to) {
  constexpr std::uint64_t kFewest = 2;  // a token, and the one that is predicted from it
  std::uint64_t trained = 0;
  if (end - begin >= kFewest) {
    SLUICE_ASSIGN_OR_RETURN(trained, trained_among(documents, begin + 1, end));
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
  const std::uint64_t most = options.sequence_tokens + 1;
  for (std::uint64_t document = first; document < last; ++document) {
    const std::uint64_t begin = documents.begin(document);
    const std::uint64_t end = documents.end(document);
    ++to.documents;
    if (end - begin <= most) {
      SLUICE_RETURN_IF_ERROR(add_piece(documents, number, begin, end, to));
      continue;
    }
    ++to.longer;
    if (options.longer == LongDocuments::kDrop) continue;
    if (options.longer == LongDocuments::kCut) {
      SLUICE_RETURN_IF_ERROR(add_piece(documents, number, begin, begin + most, to));
      continue;
    }
    for (std::uint64_t at = begin; at + 1 < end; at += options.sequence_tokens)
      SLUICE_RETURN_IF_ERROR(add_piece(documents, number, at, std::min(at + most, end), to));
  }
  return {};
}

}  // namespace sluice::data
