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
#include "engine/data/document_pieces.h"
#include "engine/data/packed_rows.h"
#include "engine/data/sampler.h"
#include "engine/data/token_corpus.h"

namespace sluice::data {

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
inline constexpr std::int64_t kIgnoredSample = -100;  // kIgnoredTarget (cross_entropy.h)

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
