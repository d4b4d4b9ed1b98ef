// Text from a launcher, a user or the network, which may be hostile: parsed strictly, and escaped
// in messages.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

// An Error of kInvalidArgument.
Error wrong(std::string what);

// A hostile value for a message: shortened, by printable().
std::string quoted(std::string_view text);

// Text of another process, on one line: cut after `most` bytes, by printable().
std::string shown(std::string_view text, std::size_t most);

// Only decimal digits, with a value up to `most`.
std::optional<int> whole_number(std::string_view text, int most);

}  // namespace sluice::engine
