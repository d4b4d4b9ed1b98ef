#include "engine/data/sample_source.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::data {
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
      return "are cut to their beginning";
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
    text += "; " + std::to_string(pieces.longer) + " documents are longer and " +
            fate_of(options.longer) + " (data.long_documents)";
  if (pieces.untrained > 0)
    text += "; " + std::to_string(pieces.untrained) + " have no token to train on and are left out";
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
                     " documents of the data has a token to train on in sequences of " +
                     std::to_string(options.sequence_tokens) + " (" +
                     std::to_string(pieces.longer) +
                     " are longer; data.long_documents says what "
                     "becomes of those)");
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
