// What a launcher, a user or the network said, which may be hostile: read strictly, and shown in
// messages.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

// kInvalidArgument.
Error wrong(std::string what);

// What a hostile value may look like in a message: short, printable.
std::string quoted(std::string_view text);

// Text of another process: cut after `most` bytes, its control characters as \xNN; UTF-8 stays.
std::string shown(std::string_view text, std::size_t most);

// Decimal digits and nothing else, up to `most`.
std::optional<int> whole_number(std::string_view text, int most);

}  // namespace sluice::engine
