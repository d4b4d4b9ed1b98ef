// Quotes names from files in messages.
#pragma once

#include <string>
#include <string_view>

namespace sluice::engine {

// Shortened, quoted, and printable for any bytes.
std::string in_quotes(std::string_view name);

}  // namespace sluice::engine
