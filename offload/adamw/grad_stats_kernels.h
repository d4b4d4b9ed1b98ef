// The kernels of grad_stats.h, one for each Isa. They run on the calling thread, with MXCSR at its
// default. A leaf is 64 consecutive elements, the first at a multiple of 64 in the unit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/adamw/adamw_arrays.h"

namespace sluice::offload {

inline constexpr int kLeafLevel = 6;
inline constexpr std::size_t kLeafElements = std::size_t{1} << kLeafLevel;

// Casts `leaves` leaves of grad into out (unless `to` is kFp32), and writes the tree node of each.
using LeafSumsKernel = void(const float* grad, GradType to, std::uint16_t* out, std::size_t leaves,
                            double* sums);

LeafSumsKernel leaf_sums_scalar;
LeafSumsKernel leaf_sums_avx2;
LeafSumsKernel leaf_sums_avx512;

// One element: casts it, returns its square.
double cast_and_square(const float* grad, GradType to, std::uint16_t* out);

// Overwrites sums[0 .. 2^levels) with the nodes above them, and returns the topmost node.
double sum_tree(double* sums, int levels);

}  // namespace sluice::offload
