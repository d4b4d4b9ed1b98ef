// DocumentLosses: the loss of each document of an evaluation, from those of its tokens.
//
// Rows come in any order, and a document may lie in several of them: a piece that a row's end cuts
// off continues in another row, with the token before it as its first input and nothing of the text
// before that. Sums are double: over a piece in the order of its tokens, over a document in the
// order of its pieces, over all in the order of documents. So they are the same for every size of
// micro-batch and every order of rows.
//
// Memory:  32 bytes a piece. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/token_corpus.h"

namespace sluice::engine {

struct DocumentLoss {
  std::uint32_t file = 0;  // of the corpus
  std::uint64_t document = 0;
  std::uint64_t targets = 0;  // that count
  double sum = 0;             // of their losses, nats
  double mean() const { return sum / static_cast<double>(targets); }
};

class DocumentLosses {
 public:
  // Of one piece: `first_token` of the file is the first that is only an input; `targets` are
  // kIgnoredSample where nothing counts.
  struct Piece {
    std::uint32_t file = 0;
    std::uint64_t first_token = 0;
    std::span<const float> losses;
    std::span<const std::int64_t> targets;
  };
  void add(const Piece& piece);

  // Those that have a target, in the order of files and documents. All files have documents.
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

// What a table of documents ends with.
struct DocumentSummary {
  double mean = 0;            // over all targets
  std::uint64_t targets = 0;  // of all documents
  double mean_of_documents = 0;
  std::size_t best = 0;  // places in the list; the first of equal ones
  std::size_t worst = 0;
};
// Of one document or more. A loss that is not finite is the worst.
DocumentSummary summary_of(std::span<const DocumentLoss> documents);

}  // namespace sluice::engine
