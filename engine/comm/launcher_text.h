// Text from a launcher, a user or the network, which may be hostile: parsed strictly, and escaped
// in messages.
//
// Threads: any.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "aio/result.h"
#include "aio/text.h"

namespace sluice::engine {

inline Error wrong(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

// Text of another process, on one line: cut after `most` bytes, by printable().
inline std::string shown(std::string_view text, std::size_t most) {
  return printable(text.substr(0, most), "") + (text.size() > most ? "..." : "");
}

// A hostile value for a message.
inline std::string quoted(std::string_view text) { return "'" + shown(text, 60) + "'"; }

// Only decimal digits, with a value up to `most`.
inline std::optional<int> whole_number(std::string_view text, int most) {
  unsigned value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value > static_cast<unsigned>(most)) return {};
  return static_cast<int>(value);
}

}  // namespace sluice::engine
