// The one way to read JSON that came from outside: files, lines of logs, other processes and hosts.
//
// JSON libraries copy, compare and write documents by recursion, so a text of 160 kB of brackets
// ends a program with a full stack. Here depth and size are checked before the parser sees the
// text. tests/tools/rooms_test.py holds the sources to it.
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

// Whether objects and arrays lie in each other more than kMostJsonNesting deep.
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

// Likewise of an object; "it is not a JSON object" otherwise.
template <typename Json>
Result<Json> read_json_object(std::string_view text) {
  SLUICE_RETURN_IF_ERROR(check_json_bounds(text));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Error(ErrorCode::kCorrupt, "it is not a JSON object");
  return json;
}

// For readers that leave out what cannot be read: is_discarded() then.
template <typename Json>
Json json_or_discarded(std::string_view text) {
  auto json = read_json<Json>(text);
  return json.ok() ? *std::move(json) : Json(Json::value_t::discarded);
}

}  // namespace sluice
