// DocumentLosses: sums the token losses of an evaluation by document.
//
// Rows come in any order, and a document may span several of them: a piece that the end of a row
// cuts off continues in another row. There its first input is the token before it, without earlier
// context. Sums are double: over a piece in token order, over a document in the order of its
// pieces, over all documents in their order. They are therefore the same for every micro-batch size
// and every order of rows.
//
// Memory:  32 bytes a piece. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/token_corpus.h"

namespace sluice::engine {

struct DocumentLoss {
  std::uint32_t file = 0;  // file of the corpus
  std::uint64_t document = 0;
  std::uint64_t targets = 0;  // targets that count
  double sum = 0;             // sum of their losses, nats
  double mean() const { return sum / static_cast<double>(targets); }
};

class DocumentLosses {
 public:
  // The losses of one piece. `first_token`: position in the file of the piece's first token, which
  // is only an input. `targets` are kIgnoredSample where a token does not count.
  struct Piece {
    std::uint32_t file = 0;
    std::uint64_t first_token = 0;
    std::span<const float> losses;
    std::span<const std::int64_t> targets;
  };
  void add(const Piece& piece);

  // The documents that have a target, in the order of files and documents. Every file must have
  // documents.
  std::vector<DocumentLoss> of_documents(const data::TokenCorpus& corpus) const;

 private:
  struct PieceSum {
    std::uint32_t file;
    std::uint64_t first_token;
    std::uint64_t targets;
    double sum;
  };
  std::vector<PieceSum> pieces_;
};

// The last lines of a table of documents.
struct DocumentSummary {
  double mean = 0;            // over all targets
  std::uint64_t targets = 0;  // in all documents
  double mean_of_documents = 0;
  std::size_t best = 0;  // index in the list; the first one among equals
  std::size_t worst = 0;
};
// Needs at least one document. A loss that is not finite counts as the worst.
DocumentSummary summary_of(std::span<const DocumentLoss> documents);

}  // namespace sluice::engine
