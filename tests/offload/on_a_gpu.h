// Tests that need a GPU: without one they are skipped, with the reason.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace sluice::offload {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Empty if there is a GPU.
inline std::string why_no_gpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return "";
  return std::string("no GPU to run the kernel on (") +
         (error == cudaSuccess ? "none found" : cudaGetErrorString(error)) + "); it was compiled";
}

template <class Test>
class OnAGpu : public Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace sluice::offload
