// SampleSource: the sequences of a run's data by number, from windows of a text or from documents
// packed into rows.
//
// Threads: all const calls from any thread. Errors: those of TokenFile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "engine/data/sampler.h"
#include "engine/data/token_corpus.h"
#include "engine/data/token_file.h"

namespace sluice::data {

// Tokens [first_token, first_token + tokens) of one file of a corpus: a document or a part of one.
struct Piece {
  std::uint64_t first_token = 0;
  std::uint32_t tokens = 0;  // 2 to T + 1
  std::uint32_t file = 0;
};

// PackedRows: packs documents into rows of T predictions, in few rows by best fit, and orders the
// rows for training. Arithmetic only, no IO.
//
// A piece of n tokens gives n - 1 predictions; a row is a sequence of pieces, with free space at
// its end. Best fit, the longest piece first (Johnson, "Near-optimal bin packing algorithms",
// 1973): each piece goes to the row where it leaves the least free space. Pieces of equal length
// keep their order, so the rows depend only on the pieces and T. Rows are ordered by their first
// piece.
//
// An epoch is every row once, in an order that depends only on (seed, epoch), or unshuffled. The
// whole state is one number, the rows drawn so far.
//
// Memory:  16 bytes a piece and 8 a row. Threads: immutable.
class PackedRows {
 public:
  struct Options {
    std::uint64_t sequence_tokens = 0;  // T
    std::optional<std::uint64_t> seed;  // of the shuffle; empty: no shuffle
  };
  // Needs at least one piece.
  PackedRows(std::vector<Piece> pieces, const Options& options);

  std::uint64_t count() const { return row_begins_.size() - 1; }
  std::span<const Piece> at(std::uint64_t rows_drawn) const;
  // Predictions in all rows as a fraction of their capacity: 1 is full.
  double filled() const { return filled_; }

  // A hash of everything that at() depends on: see ShuffledSampler::order_id().
  std::uint64_t order_id() const;

 private:
  Options options_;
  std::vector<Piece> pieces_;              // row by row
  std::vector<std::uint64_t> row_begins_;  // indices in pieces_; the last is pieces_.size()
  double filled_ = 0;
};

// Selects the parts of a file's documents that are trained on, for sequences of T predictions.
//
// A document of more than T + 1 tokens is cut to its first T + 1, left out, or split. The parts of
// a split each begin with the last token of the previous part. Pieces without a token to train on
// are left out, as they would only waste space.
//
// Threads: any. Errors: those of TokenDocuments.
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

// One sequence of T tokens, filled by read().
struct SampleRow {
  std::span<std::int64_t> inputs;
  std::span<std::int64_t> targets;  // kIgnoredSample for targets that do not count
  // For sources with documents: each token's position in its document, and where the documents
  // begin in the row.
  std::span<std::int64_t> positions;
  std::vector<std::int64_t> begins;
  std::int64_t counted = 0;  // targets that are not ignored
};
inline constexpr std::int64_t kIgnoredSample = -100;  // kIgnoredTarget (cuda_kernels.h)

// A piece of a sample; a sample is a sequence of pieces of files. A piece of n tokens gives n - 1
// predictions.
struct SamplePlace {
  std::uint32_t file = 0;
  std::uint64_t first_token = 0;
  std::uint64_t tokens = 0;
};

class SampleSource {
 public:
  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  virtual std::uint64_t count() const = 0;  // in an epoch
  virtual bool has_documents() const = 0;
  // The documents that its rows were chosen from; 0: none.
  virtual std::uint64_t documents() const { return 0; }
  virtual std::uint64_t targets() const = 0;  // in an epoch, without ignored ones
  // What was done with the documents, as a sentence; empty: there are none.
  virtual std::string outcome() const { return {}; }
  // Whether some documents are not, or only partly, trained on.
  virtual bool leaves_out() const { return false; }
  virtual std::uint64_t order_id() const = 0;
  virtual Status read(std::uint64_t sample, SampleRow& row) const = 0;
  virtual std::vector<SamplePlace> places(std::uint64_t sample) const = 0;
};

struct SourceOptions {
  std::uint64_t sequence_tokens = 0;
  std::optional<std::uint64_t> shuffle_seed;  // empty: in order
  LongDocuments longer = LongDocuments::kCut;
};

// Windows over ranges of files without documents. The corpus must outlive the source.
Result<std::unique_ptr<SampleSource>> window_source(const TokenCorpus& corpus,
                                                    std::span<const TokenRange> ranges,
                                                    const SourceOptions& options);

// Documents [first, last) of a file.
struct DocumentRange {
  std::uint32_t file = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};
// Rows of documents. kInvalidArgument if nothing is left to train on.
Result<std::unique_ptr<SampleSource>> document_source(const TokenCorpus& corpus,
                                                      std::span<const DocumentRange> ranges,
                                                      const SourceOptions& options);

}  // namespace sluice::data
