// Selects the parts of a file's documents that are trained on, for sequences of T predictions.
//
// A document of more than T + 1 tokens is cut to its first T + 1, left out, or split. The parts of
// a split each begin with the last token of the previous part. Pieces without a token to train on
// are left out, as they would only waste space.
//
// Threads: any. Errors: those of TokenDocuments.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "engine/data/packed_rows.h"
#include "engine/data/token_file.h"

namespace sluice::data {

enum class LongDocuments : std::uint8_t { kCut, kDrop, kSplit };

struct PieceOptions {
  std::uint64_t sequence_tokens = 0;  // T
  LongDocuments longer = LongDocuments::kCut;
};

struct DocumentPieces {
  std::vector<Piece> pieces;
  std::uint64_t documents = 0;
  std::uint64_t longer = 0;     // documents that do not fit a row
  std::uint64_t untrained = 0;  // pieces without a token to train on, left out
  std::uint64_t trained_tokens = 0;
};

// Adds the pieces of documents [first, last) of a file that has documents; `number` is the file's
// index in its corpus.
Status add_pieces(const TokenFile& file, std::uint32_t number, std::uint64_t first,
                  std::uint64_t last, const PieceOptions& options, DocumentPieces& to);

}  // namespace sluice::data
