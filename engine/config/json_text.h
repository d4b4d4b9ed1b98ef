// JSON with readable errors, and JSON values as text for messages. Private to this folder.
//
// Bounded: the text, its nesting and the keys of one object have limits, and so has the cost of any
// input.
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

// Errors begin with `name`: "run.json:3:14: unexpected '}' ...". A duplicate key in an object is an
// error that names it.
Result<Json> parse_json(std::string_view name, std::string_view text);

// The same for a configuration file in relaxed JSON. DeepSpeed reads its files with Hjson. Accepted
// are comments (#, // and /* */), commas after the last entry, keys without quotes, Python's True,
// False and None, and a byte order mark. The rest of Hjson (strings without quotes, entries without
// commas, ''' strings, a root without braces) is an error with its line and a correction.
Result<Json> read_document(std::string_view name, std::string_view text);

// A value in one short line; strings are made printable.
std::string short_text(const Json& value);
std::string printable(std::string_view text);

bool is_valid_utf8(std::string_view text);

}  // namespace sluice::config
