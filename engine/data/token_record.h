// TokenRecord: what a sidecar says for people (token_sidecar.h says what it says for the engine):
// where the text of a token file came from, and what the preparation left out.
//
// Everything in it may be missing, as in files of older versions: then there is nothing here.
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
  std::optional<std::uint64_t> documents;  // also of a file that is one text
  std::string train_on;                    // of conversations: "assistant", "last", "all"

  // Of the whole preparation, of which the file may be a part.
  struct Preparation {
    std::optional<std::uint64_t> conversations;  // read; nothing: it was text
    std::uint64_t cut = 0;                       // conversations
    std::uint64_t replaced = 0;                  // sources or conversations that were not UTF-8
    std::vector<std::pair<std::string, std::uint64_t>> left_out;  // by reason, the most first
  };
  std::optional<Preparation> preparation;
};

TokenRecord parse_token_record(std::string_view sidecar_text);

}  // namespace sluice::data
