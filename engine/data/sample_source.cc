#include "engine/data/sample_source.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "aio/check.h"
#include "aio/split_mix.h"
#include "engine/data/permutation.h"

namespace sluice::data {
namespace {

// The row of each piece.
std::vector<std::uint64_t> best_fit(const std::vector<Piece>& pieces, std::uint64_t room) {
  std::vector<std::uint64_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return pieces[a].tokens > pieces[b].tokens;
  });
  std::set<std::pair<std::uint64_t, std::uint64_t>> rows;  // free space, and the row's index
  std::vector<std::uint64_t> row_of(pieces.size());
  std::uint64_t count = 0;
  for (const std::uint64_t piece : order) {
    const std::uint64_t needed = pieces[piece].tokens - 1;
    const auto best = rows.lower_bound({needed, 0});
    std::uint64_t left = room;
    std::uint64_t row = count;
    if (best == rows.end()) {
      ++count;
    } else {
      std::tie(left, row) = *best;
      rows.erase(best);
    }
    row_of[piece] = row;
    if (left > needed) rows.emplace(left - needed, row);
  }
  // Number rows by their first piece; until here, rows with the longest pieces come first.
  std::vector<std::uint64_t> renumbered(count, count);
  std::uint64_t next = 0;
  for (std::uint64_t& row : row_of) {
    if (renumbered[row] == count) renumbered[row] = next++;
    row = renumbered[row];
  }
  return row_of;
}

}  // namespace

PackedRows::PackedRows(std::vector<Piece> pieces, const Options& options) : options_(options) {
  const std::uint64_t room = options.sequence_tokens;
  SLUICE_CHECK(!pieces.empty(), "rows of one piece or more");
  for (const Piece& piece : pieces)
    SLUICE_CHECK(piece.tokens >= 2 && piece.tokens <= room + 1, "a piece that fits a row");
  const std::vector<std::uint64_t> row_of = best_fit(pieces, room);
  const std::uint64_t rows = *std::max_element(row_of.begin(), row_of.end()) + 1;
  row_begins_.assign(rows + 1, 0);
  for (const std::uint64_t row : row_of) ++row_begins_[row + 1];
  std::partial_sum(row_begins_.begin(), row_begins_.end(), row_begins_.begin());
  // Within a row, pieces keep their order.
  std::vector<std::uint64_t> next(row_begins_.begin(), row_begins_.end() - 1);
  pieces_.resize(pieces.size());
  std::uint64_t predictions = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces_[next[row_of[i]]++] = pieces[i];
    predictions += pieces[i].tokens - 1;
  }
  filled_ = static_cast<double>(predictions) / static_cast<double>(rows * room);
}

std::span<const Piece> PackedRows::at(std::uint64_t rows_drawn) const {
  std::uint64_t row = rows_drawn % count();
  if (options_.seed) {
    // Uses the streams of ShuffledSampler; an epoch's second stream is not needed here.
    const std::uint64_t epoch = rows_drawn / count();
    row = Permutation(count(), *options_.seed, 2 * epoch).at(row);
  }
  return std::span(pieces_).subspan(row_begins_[row], row_begins_[row + 1] - row_begins_[row]);
}

std::uint64_t PackedRows::order_id() const {
  std::uint64_t id = aio::SplitMix(options_.seed.value_or(0), options_.sequence_tokens).next();
  for (const Piece& piece : pieces_)
    for (const std::uint64_t part :
         {piece.first_token, std::uint64_t{piece.tokens}, std::uint64_t{piece.file}})
      id = aio::SplitMix(id ^ part).next();
  for (const std::uint64_t begin : row_begins_) id = aio::SplitMix(id ^ begin).next();
  return id;
}

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

namespace {

class WindowSource final : public SampleSource {
 public:
  WindowSource(const TokenCorpus& corpus, std::optional<ShuffledSampler> shuffled,
               std::optional<SequentialSampler> in_order)
      : corpus_(corpus), shuffled_(std::move(shuffled)), in_order_(std::move(in_order)) {}

  std::uint64_t count() const override {
    return shuffled_ ? shuffled_->samples_per_epoch() : in_order_->count();
  }
  bool has_documents() const override { return false; }
  std::uint64_t targets() const override { return count() * sequence_tokens(); }
  std::uint64_t order_id() const override { return shuffled_ ? shuffled_->order_id() : 0; }
  Status read(std::uint64_t sample, SampleRow& row) const override {
    std::vector<std::int64_t> window(row.inputs.size() + 1);
    SLUICE_RETURN_IF_ERROR(corpus_.read(at(sample), window));
    std::copy_n(window.begin(), row.inputs.size(), row.inputs.begin());
    std::copy_n(window.begin() + 1, row.targets.size(), row.targets.begin());
    row.counted = static_cast<std::int64_t>(row.targets.size());
    return {};
  }
  std::vector<SamplePlace> places(std::uint64_t sample) const override {
    const Sample found = at(sample);
    return {
        {.file = found.file, .first_token = found.first_token, .tokens = sequence_tokens() + 1}};
  }

 private:
  std::uint64_t sequence_tokens() const {
    return shuffled_ ? shuffled_->sequence_tokens() : in_order_->sequence_tokens();
  }
  Sample at(std::uint64_t sample) const {
    return shuffled_ ? shuffled_->at(sample) : in_order_->at(sample);
  }

  const TokenCorpus& corpus_;
  std::optional<ShuffledSampler> shuffled_;
  std::optional<SequentialSampler> in_order_;
};

class DocumentSource final : public SampleSource {
 public:
  struct Facts {
    std::uint64_t documents = 0;
    std::uint64_t targets = 0;
    std::string outcome;
    bool leaves_out = false;
  };
  DocumentSource(const TokenCorpus& corpus, PackedRows rows, Facts facts)
      : corpus_(corpus), rows_(std::move(rows)), facts_(std::move(facts)) {}

  std::uint64_t count() const override { return rows_.count(); }
  bool has_documents() const override { return true; }
  std::uint64_t documents() const override { return facts_.documents; }
  std::uint64_t targets() const override { return facts_.targets; }
  std::string outcome() const override { return facts_.outcome; }
  bool leaves_out() const override { return facts_.leaves_out; }
  std::uint64_t order_id() const override { return rows_.order_id(); }

  Status read(std::uint64_t sample, SampleRow& row) const override {
    std::size_t at = 0;
    for (const Piece& piece : rows_.at(sample)) {
      SLUICE_RETURN_IF_ERROR(read_piece(piece, at, row));
      at += piece.tokens - 1;
    }
    if (at == row.inputs.size()) return {};
    // The rest of the row is a document of its own without targets that count.
    begin_document(at, row.inputs.size() - at, row);
    std::fill(row.inputs.begin() + static_cast<std::ptrdiff_t>(at), row.inputs.end(), 0);
    std::fill(row.targets.begin() + static_cast<std::ptrdiff_t>(at), row.targets.end(),
              kIgnoredSample);
    return {};
  }
  std::vector<SamplePlace> places(std::uint64_t sample) const override {
    std::vector<SamplePlace> places;
    for (const Piece& piece : rows_.at(sample))
      places.push_back(
          {.file = piece.file, .first_token = piece.first_token, .tokens = piece.tokens});
    return places;
  }

 private:
  static void begin_document(std::size_t at, std::size_t tokens, SampleRow& row) {
    row.begins.push_back(static_cast<std::int64_t>(at));
    const std::span positions = row.positions.subspan(at, tokens);
    std::iota(positions.begin(), positions.end(), std::int64_t{0});
  }

  Status read_piece(const Piece& piece, std::size_t at, SampleRow& row) const {
    const TokenFile& file = corpus_.files()[piece.file];
    std::vector<std::int64_t> tokens(piece.tokens);
    SLUICE_RETURN_IF_ERROR(file.copy(piece.first_token, tokens));
    const std::size_t count = tokens.size() - 1;
    const auto mask = std::make_unique<bool[]>(count);  // vector<bool> contains no array
    const std::span trained(mask.get(), count);
    SLUICE_RETURN_IF_ERROR(file.documents()->copy_mask(piece.first_token + 1, trained));
    begin_document(at, count, row);
    for (std::size_t i = 0; i < count; ++i) {
      row.inputs[at + i] = tokens[i];
      row.targets[at + i] = trained[i] ? tokens[i + 1] : kIgnoredSample;
      row.counted += trained[i] ? 1 : 0;
    }
    return {};
  }

  const TokenCorpus& corpus_;
  PackedRows rows_;
  Facts facts_;
};

const char* fate_of(LongDocuments longer) {
  switch (longer) {
    case LongDocuments::kCut:
      return "are truncated";
    case LongDocuments::kDrop:
      return "are left out";
    case LongDocuments::kSplit:
      return "are split";
  }
  return "";
}

std::string outcome_of(const DocumentPieces& pieces, const PackedRows& rows,
                       const SourceOptions& options) {
  constexpr double kPercent = 100;
  std::string text = std::to_string(pieces.documents) + " documents in " +
                     std::to_string(rows.count()) + " rows of " +
                     std::to_string(options.sequence_tokens) + " tokens, " +
                     std::to_string(std::lround(kPercent * rows.filled())) + "% full; " +
                     std::to_string(pieces.trained_tokens) + " tokens are trained on";
  if (pieces.longer > 0)
    text += "; " + std::to_string(pieces.longer) + " longer documents " + fate_of(options.longer) +
            " (data.long_documents)";
  if (pieces.untrained > 0)
    text += "; " + std::to_string(pieces.untrained) +
            " documents without tokens to train on are left out";
  return text;
}

}  // namespace

Result<std::unique_ptr<SampleSource>> window_source(const TokenCorpus& corpus,
                                                    std::span<const TokenRange> ranges,
                                                    const SourceOptions& options) {
  std::optional<ShuffledSampler> shuffled;
  std::optional<SequentialSampler> in_order;
  if (options.shuffle_seed) {
    SLUICE_ASSIGN_OR_RETURN(
        shuffled, ShuffledSampler::create(ranges, {.sequence_tokens = options.sequence_tokens,
                                                   .seed = *options.shuffle_seed}));
  } else {
    SLUICE_ASSIGN_OR_RETURN(in_order, SequentialSampler::create(ranges, options.sequence_tokens));
  }
  return std::unique_ptr<SampleSource>(
      std::make_unique<WindowSource>(corpus, std::move(shuffled), std::move(in_order)));
}

Result<std::unique_ptr<SampleSource>> document_source(const TokenCorpus& corpus,
                                                      std::span<const DocumentRange> ranges,
                                                      const SourceOptions& options) {
  DocumentPieces pieces;
  for (const DocumentRange& range : ranges)
    SLUICE_RETURN_IF_ERROR(
        add_pieces(corpus.files()[range.file], range.file, range.first, range.last,
                   {.sequence_tokens = options.sequence_tokens, .longer = options.longer}, pieces));
  if (pieces.pieces.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "none of the " + std::to_string(pieces.documents) +
                     " documents in the data has a token to train on within sequences of " +
                     std::to_string(options.sequence_tokens) + " (" +
                     std::to_string(pieces.longer) +
                     " are longer; data.long_documents says what happens to these)");
  PackedRows rows(std::move(pieces.pieces),
                  {.sequence_tokens = options.sequence_tokens, .seed = options.shuffle_seed});
  const bool is_cut = pieces.longer > 0 && options.longer != LongDocuments::kSplit;
  DocumentSource::Facts facts = {.documents = pieces.documents,
                                 .targets = pieces.trained_tokens,
                                 .outcome = outcome_of(pieces, rows, options),
                                 .leaves_out = is_cut || pieces.untrained > 0};
  return std::unique_ptr<SampleSource>(
      std::make_unique<DocumentSource>(corpus, std::move(rows), std::move(facts)));
}

}  // namespace sluice::data
