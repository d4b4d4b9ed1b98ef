// The version that every benchmark shows and writes into its results.
#pragma once

#include <string_view>

namespace sluice::bench {

inline constexpr std::string_view kVersion = SLUICE_VERSION;

}  // namespace sluice::bench
