#include "tools/support/version.h"

#include "sluice_commit.h"  // written by each build: cmake/WriteCommit.cmake

namespace sluice::tools {

std::string version_text(std::string_view program) {
  return std::string(program) + " " + std::string(kVersion) + " (commit " + SLUICE_COMMIT +
         ")\nLibTorch: " + SLUICE_TORCH_VERSION + "\nCUDA: " + SLUICE_CUDA_VERSION;
}

}  // namespace sluice::tools
