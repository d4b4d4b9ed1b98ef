// JSON with errors for people, and JSON values as text for messages. Private to this folder.
//
// Bounded: text, nesting and keys of one object have limits, so that no input costs more than the
// limits allow.
//
// Threads: any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::config {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kMaxTextBytes = 1 << 20;
inline constexpr int kMaxDepth = 16;
inline constexpr std::size_t kMaxKeysOfObject = 1024;

// Errors begin with `name`: "run.json:3:14: unexpected '}' ...". A key given twice in one object is
// an error that names it.
Result<Json> parse_json(std::string_view name, std::string_view text);

// Likewise of any configuration, as people write them. DeepSpeed reads its files with Hjson:
// comments (#, // and /* */), commas after the last entry, keys without quotes, and Python's True
// and False; a byte order mark, too. The rest of Hjson (strings without quotes, entries without
// commas, ''' strings, a root without braces) is an error with its line and what to write instead.
Result<Json> read_document(std::string_view name, std::string_view text);

// A value in one short line; any string in a form that a terminal shows.
std::string short_text(const Json& value);
std::string printable(std::string_view text);

bool is_valid_utf8(std::string_view text);

}  // namespace sluice::config
