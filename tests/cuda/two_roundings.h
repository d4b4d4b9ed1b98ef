// out[i] = a[i] * b[i] + c[i] on the GPU, the product rounded before the sum.
#pragma once

#include <cstddef>

namespace sluice {

// Host pointers. Returns an empty string, or CUDA's error.
const char* multiply_add_on_gpu(const float* a, const float* b, const float* c, float* out,
                                std::size_t count);

// An empty string when a kernel can run here, else the reason why not.
const char* why_no_gpu();

}  // namespace sluice
