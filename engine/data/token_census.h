// TokenCensus: statistics from one pass over a token file.
//
// Documents are those of TokenDocuments. In a file that is one text they end with the end-of-text
// token, if that is known. A target is a predicted token that counts. In one text that is every
// token but the first; with a mask, every masked-in token except the first of a document.
//
// Memory:  8 bytes a document.
// Errors:  those of TokenFile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "aio/result.h"
#include "engine/data/token_file.h"

namespace sluice::data {

struct TokenCensus {
  std::uint64_t tokens = 0;
  std::uint64_t targets = 0;
  std::uint64_t largest = 0;                   // token
  std::uint64_t largest_at = 0;                // the first position that has it
  std::vector<std::uint64_t> lengths;          // of documents, in tokens, ascending; empty: unknown
  std::uint64_t documents_without_target = 0;  // in files with a mask
};

using CensusProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// `end_of_text`: for a file that is one text.
Result<TokenCensus> take_census(const TokenFile& file, std::optional<std::int64_t> end_of_text,
                                const CensusProgress& progress);

// The number of lengths in each power-of-two range: 1, 2 to 3, 4 to 7, and so on up to the longest.
// Ranges below the shortest are left out.
struct LengthRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count = 0;
};
std::vector<LengthRange> histogram_of(const std::vector<std::uint64_t>& ascending_lengths);

}  // namespace sluice::data
