// The version that every program shows, and benchmarks write into their results.
#pragma once

#include <string_view>

namespace sluice::tools {

inline constexpr std::string_view kVersion = SLUICE_VERSION;

}  // namespace sluice::tools
