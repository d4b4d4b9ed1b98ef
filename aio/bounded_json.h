// The only way to read JSON from outside the program: files, log lines, other processes and hosts.
//
// JSON libraries copy, compare and write documents by recursion, so 160 kB of brackets overflow the
// stack and end the program. These functions check depth and size before the parser sees the text.
// tests/tools/rooms_test.py checks that all sources use them.
//
// Threads: pure functions. Errors: kCorrupt, a sentence that begins with "it".
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "aio/result.h"

namespace sluice {

inline constexpr int kMostJsonNesting = 64;
inline constexpr std::size_t kMostJsonBytes = std::size_t{512} << 20;

// Whether objects and arrays are nested more than kMostJsonNesting deep.
bool is_nested_too_deep(std::string_view json);

Status check_json_bounds(std::string_view json);
Error not_json();

template <typename Json>
Result<Json> read_json(std::string_view text) {
  SLUICE_RETURN_IF_ERROR(check_json_bounds(text));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return not_json();
  return json;
}

// The same for an object; otherwise the error is "it is not a JSON object".
template <typename Json>
Result<Json> read_json_object(std::string_view text) {
  SLUICE_RETURN_IF_ERROR(check_json_bounds(text));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(ErrorCode::kCorrupt, "it is not a JSON object");
  return json;
}

// For readers that skip unreadable text: the result is then is_discarded().
template <typename Json>
Json json_or_discarded(std::string_view text) {
  auto json = read_json<Json>(text);
  return json.ok() ? *std::move(json) : Json(Json::value_t::discarded);
}

}  // namespace sluice
