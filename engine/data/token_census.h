// TokenCensus: what one pass over all of a token file counts.
//
// Documents are those of TokenDocuments; in a file that is one text, what ends with the token that
// ends a text, where that is known. A target is a token that is predicted and counts: in one text
// every token but the first; else what the mask says, but for the first token of a document.
//
// Memory:  8 bytes a document.
// Errors:  as TokenFile.
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
  std::uint64_t largest_at = 0;                // the first place that has it
  std::vector<std::uint64_t> lengths;          // of documents in tokens, in ascending order; empty:
                                               // where they end is not known
  std::uint64_t documents_without_target = 0;  // of files with a mask
};

using CensusProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// `end_of_text`: for a file that is one text.
Result<TokenCensus> take_census(const TokenFile& file, std::optional<std::int64_t> end_of_text,
                                const CensusProgress& progress);

// How many lengths there are of each order of magnitude: 1, 2 to 3, 4 to 7, and so on up to the
// longest; those below the shortest are left out.
struct LengthRange {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t count = 0;
};
std::vector<LengthRange> histogram_of(const std::vector<std::uint64_t>& ascending_lengths);

}  // namespace sluice::data
