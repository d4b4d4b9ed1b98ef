// The version that every program shows and that benchmarks write into their results.
#pragma once

#include <string>
#include <string_view>

namespace sluice::tools {

inline constexpr std::string_view kVersion = SLUICE_VERSION;

// The output of --version: version and commit of the sources, and the versions of LibTorch and
// CUDA.
std::string version_text(std::string_view program);

}  // namespace sluice::tools
