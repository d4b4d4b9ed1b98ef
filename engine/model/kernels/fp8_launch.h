// Casts of a matrix of 16-bit numbers to 8-bit floating-point numbers, scaled by the matrix's
// largest one. Without LibTorch's headers. The results have a fixed order: a maximum has none.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

// `columns` is a multiple of 8, and rows are aligned to 16 bytes.
struct Fp8CastLaunch {
  const void* from = nullptr;  // [rows, columns], contiguous
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
  bool is_e5m2 = false;
  // The bits of the largest absolute value, which launch_fp8_largest() leaves. A NaN is larger than
  // all numbers.
  std::uint32_t* largest = nullptr;
  float* scale = nullptr;          // what the cast numbers are to be multiplied by
  std::uint8_t* to = nullptr;      // [rows, columns], unless null
  std::uint8_t* turned = nullptr;  // [columns, padded_rows], unless null; the padding becomes 0
  std::int64_t padded_rows = 0;    // a multiple of 16
};
cudaError_t launch_fp8_largest(const Fp8CastLaunch& launch, cudaStream_t stream);
cudaError_t launch_fp8_cast(const Fp8CastLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
