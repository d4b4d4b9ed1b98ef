// The version that every program shows, and benchmarks write into their results.
#pragma once

#include <string>
#include <string_view>

namespace sluice::tools {

inline constexpr std::string_view kVersion = SLUICE_VERSION;

// What --version prints: version and commit of the sources, and what they were built with.
std::string version_text(std::string_view program);

}  // namespace sluice::tools
