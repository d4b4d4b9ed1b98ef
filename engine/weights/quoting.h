// Names from files, in messages.
#pragma once

#include <string>
#include <string_view>

namespace sluice::engine {

// Shortened, in quotes, and in a form that a terminal shows, whatever bytes it has.
std::string in_quotes(std::string_view name);

}  // namespace sluice::engine
