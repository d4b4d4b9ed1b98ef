// CUDA operations that the model needs beyond ATen, on the current stream. In a build without CUDA
// each throws, naming what is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

struct DropoutMask {
  std::uint64_t seed = 0;
  std::uint64_t first_pair = 0;
  std::uint32_t threshold = 0;
  double scale = 1;
};

// Both must be contiguous and of one dtype and length; they may be the same tensor.
void cuda_dropout(const at::Tensor& from, at::Tensor& to, const DropoutMask& mask);

// A target that is ignored, as in torch's cross_entropy.
inline constexpr std::int64_t kIgnoredTarget = -100;

// Replaces each row of logits [rows, columns] by the gradient of grad_scale times its loss, unless
// `gradient` is false. Columns from `vocab` on become 0. Writes the row's loss to losses (fp32
// [rows]): NaN for a target outside the vocabulary, 0 for kIgnoredTarget, whose gradient is 0.
struct CrossEntropyOptions {
  std::int64_t vocab = 0;
  double grad_scale = 1;
  bool gradient = true;
};
void cuda_cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                        const CrossEntropyOptions& options);

// What the scans of a gated delta rule read: contiguous, [chunks, heads, 64, ...].
struct DeltaScan {
  const at::Tensor& solved;   // new values, and then reads
  const at::Tensor& asks;     // [.., key_dim]
  const at::Tensor& leaves;   // [.., key_dim]
  const at::Tensor& scores;   // [.., 64]
  const at::Tensor& through;  // [chunks, heads, ...]
  bool in_tf32 = false;       // whether factors of products may be rounded to TF32
};
// Whether the kernel of kernels/delta_launch.h computes them: in TF32 on CUDA, of some sizes.
bool cuda_scans(const DeltaScan& scan);
// `state` [heads, key_dim, value_dim] becomes the one after the last chunk. Writes the output, and
// the states before each chunk and the written values, unless these are undefined.
struct DeltaScanned {
  const at::Tensor& output;
  const at::Tensor& states;
  const at::Tensor& written;
};
void cuda_scan(const DeltaScan& scan, const at::Tensor& state, const DeltaScanned& made);
// Writes the gradients of the states after each chunk, and of the written values. `gradient`: of
// the output.
void cuda_scan_back(const DeltaScan& scan, const at::Tensor& gradient, const at::Tensor& states,
                    const at::Tensor& written);

// Whether a kernel inverts the identity plus `lower` [..., 64, 64], which has numbers below its
// diagonal alone: fp32 on CUDA.
bool cuda_inverts(const at::Tensor& lower);
at::Tensor cuda_unit_inverse(const at::Tensor& lower);

// Casts `from` [rows, columns], contiguous 16-bit numbers, to the dtype of `by_rows` [rows,
// columns] and `by_columns` [columns, more rows]. Either may be undefined; added rows become 0.
// Writes to `scale` what the cast numbers are to be multiplied by.
void cuda_cast_to_fp8(const at::Tensor& from, const at::Tensor& scale, const at::Tensor& by_rows,
                      const at::Tensor& by_columns);

// The major number of the device's compute capability: 8 from Ampere on, 9 from Hopper on.
int cuda_major(at::Device device);
int cuda_minor(at::Device device);

}  // namespace sluice::engine
