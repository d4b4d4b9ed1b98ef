// SpecialTokens: the tokens that begin and end a text, and generation_config.json, where
// transformers' generate() reads them.
//
// Errors: kCorrupt, a sentence without the file's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"

namespace sluice::engine {

struct SpecialTokens {
  std::optional<std::int64_t> begin;
  std::vector<std::int64_t> ends;  // each of these ends a text
  std::optional<std::int64_t> padding;

  bool empty() const { return !begin && ends.empty() && !padding; }
  bool ends_text(std::int64_t token) const;

  // Without tokens outside a vocabulary of that size.
  SpecialTokens within(std::int64_t vocab) const;
  // Missing values are taken from `other`.
  SpecialTokens or_else(const SpecialTokens& other) const;

  friend bool operator==(const SpecialTokens&, const SpecialTokens&) = default;
};

inline constexpr std::string_view kGenerationConfigName = "generation_config.json";
inline constexpr std::uint64_t kMaxGenerationConfigBytes = 16 << 20;

// bos_token_id, eos_token_id (a token or a list) and pad_token_id of a JSON object, as in
// config.json and generation_config.json. null or a negative number means that there is none.
Result<SpecialTokens> parse_special_tokens(std::string_view json);

// `original`: another generation_config.json, whose other settings are kept; empty: none.
Result<std::string> generation_config_text(const SpecialTokens& tokens, std::string_view original);

}  // namespace sluice::engine
