// TokenRecord: the informational part of a sidecar: the source of a token file's text, and what the
// preparation left out. token_sidecar.h has the part that the engine uses.
//
// Everything may be missing, as in files of older versions; the fields are then empty.
// Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::data {

struct TokenRecord {
  std::optional<std::uint64_t> sources;  // files that were read
  std::optional<std::uint64_t> source_bytes;
  std::optional<std::uint64_t> documents;  // also for a file that is one text
  std::string train_on;                    // for conversations: "assistant", "last", "all"

  // Statistics of the whole preparation, which may have written more files.
  struct Preparation {
    std::optional<std::uint64_t> conversations;  // read; empty: the source was text
    std::uint64_t cut = 0;                       // conversations
    std::uint64_t replaced = 0;                  // sources or conversations that were not UTF-8
    std::vector<std::pair<std::string, std::uint64_t>>
        left_out;  // by reason, the most frequent first
  };
  std::optional<Preparation> preparation;
};

TokenRecord parse_token_record(std::string_view sidecar_text);

}  // namespace sluice::data
