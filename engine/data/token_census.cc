#include "engine/data/token_census.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <span>

namespace sluice::data {
namespace {

constexpr std::uint64_t kTokensAtOnce = 1 << 16;

// For one text, whose documents end with a token.
class EndCounter {
 public:
  explicit EndCounter(std::optional<std::int64_t> end) : end_(end) {}

  void add(std::span<const std::int64_t> tokens) {
    if (!end_) return;
    for (const std::int64_t token : tokens) {
      ++length_;
      if (token != *end_) continue;
      lengths_.push_back(length_);
      length_ = 0;
    }
  }
  std::vector<std::uint64_t> finish() {
    if (length_ > 0) lengths_.push_back(length_);
    return std::move(lengths_);
  }

 private:
  std::optional<std::int64_t> end_;
  std::uint64_t length_ = 0;
  std::vector<std::uint64_t> lengths_;
};

// For a file with documents and a mask.
class MaskCounter {
 public:
  explicit MaskCounter(const TokenDocuments& documents) : documents_(documents) {}

  // Adds tokens from `first` on, directly after the previous ones.
  Status add(std::uint64_t first, std::uint64_t count) {
    const std::span mask(mask_.get(), count);
    SLUICE_RETURN_IF_ERROR(documents_.copy_mask(first, mask));
    for (std::uint64_t at = first; at < first + count; ++at) {
      if (at == documents_.end(document_)) end_document();
      if (at > documents_.begin(document_) && mask[at - first]) ++of_document_;
    }
    return {};
  }
  void finish(TokenCensus& census) {
    end_document();
    census.targets = targets_;
    census.documents_without_target = without_;
    for (std::uint64_t i = 0; i < documents_.count(); ++i)
      census.lengths.push_back(documents_.end(i) - documents_.begin(i));
  }

 private:
  void end_document() {
    targets_ += of_document_;
    without_ += of_document_ == 0 ? 1 : 0;
    of_document_ = 0;
    ++document_;
  }

  const TokenDocuments& documents_;
  std::unique_ptr<bool[]> mask_ = std::make_unique<bool[]>(kTokensAtOnce);
  std::uint64_t document_ = 0;
  std::uint64_t of_document_ = 0;
  std::uint64_t targets_ = 0;
  std::uint64_t without_ = 0;
};

void note_largest(std::uint64_t first, std::span<const std::int64_t> tokens, TokenCensus& census) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(tokens[i]);
    if (token <= census.largest) continue;
    census.largest = token;
    census.largest_at = first + i;
  }
}

}  // namespace

Result<TokenCensus> take_census(const TokenFile& file, std::optional<std::int64_t> end_of_text,
                                const CensusProgress& progress) {
  TokenCensus census{.tokens = file.token_count()};
  EndCounter ends(file.documents() == nullptr ? end_of_text : std::nullopt);
  std::optional<MaskCounter> masks;
  if (file.documents() != nullptr) masks.emplace(*file.documents());
  std::vector<std::int64_t> tokens;
  for (std::uint64_t first = 0; first < census.tokens; first += tokens.size()) {
    tokens.resize(std::min(kTokensAtOnce, census.tokens - first));
    SLUICE_RETURN_IF_ERROR(file.copy(first, tokens));
    note_largest(first, tokens, census);
    ends.add(tokens);
    if (masks) SLUICE_RETURN_IF_ERROR(masks->add(first, tokens.size()));
    if (progress) progress(first + tokens.size(), census.tokens);
  }
  if (masks) {
    masks->finish(census);
  } else {
    census.targets = census.tokens - 1;
    census.lengths = ends.finish();
  }
  std::sort(census.lengths.begin(), census.lengths.end());
  return census;
}

std::vector<LengthRange> histogram_of(const std::vector<std::uint64_t>& ascending_lengths) {
  std::vector<LengthRange> ranges;
  if (ascending_lengths.empty()) return ranges;
  for (std::uint64_t from = std::bit_floor(ascending_lengths.front());; from *= 2) {
    const std::uint64_t to = from - 1 + from;
    const auto begin = std::lower_bound(ascending_lengths.begin(), ascending_lengths.end(), from);
    const auto end = std::upper_bound(begin, ascending_lengths.end(), to);
    ranges.push_back({from, to, static_cast<std::uint64_t>(end - begin)});
    if (end == ascending_lengths.end()) return ranges;
  }
}

}  // namespace sluice::data
