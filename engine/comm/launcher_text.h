// What a launcher or a user wrote, which may be hostile: read strictly, and shown in messages.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

// kInvalidArgument.
Error wrong(std::string what);

// What a hostile value may look like in a message: short, printable.
std::string quoted(std::string_view text);

// Decimal digits and nothing else, up to `most`.
std::optional<int> whole_number(std::string_view text, int most);

}  // namespace sluice::engine
