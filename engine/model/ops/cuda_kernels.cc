#include "engine/model/ops/cuda_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "engine/model/kernels/cuda_launch.h"
#include "engine/model/kernels/delta_launch.h"
#include "engine/model/kernels/fp8_launch.h"

namespace sluice::engine {
namespace {

CudaDtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return CudaDtype::kFloat;
    case at::kBFloat16:
      return CudaDtype::kBfloat16;
    case at::kHalf:
      return CudaDtype::kHalf;
    default:
      TORCH_CHECK(false, "the model's CUDA kernels support fp32, bf16 and fp16, not ",
                  tensor.scalar_type());
  }
}

}  // namespace

void cuda_dropout(const at::Tensor& from, at::Tensor& to, const DropoutMask& mask) {
  const c10::cuda::CUDAGuard guard(from.device());
  C10_CUDA_CHECK(launch_dropout({.from = from.const_data_ptr(),
                                 .to = to.mutable_data_ptr(),
                                 .elements = from.numel(),
                                 .dtype = dtype_of(from),
                                 .seed = mask.seed,
                                 .first_pair = mask.first_pair,
                                 .threshold = mask.threshold,
                                 .scale = static_cast<float>(mask.scale)},
                                c10::cuda::getCurrentCUDAStream()));
}

void cuda_cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                        const CrossEntropyOptions& options) {
  TORCH_CHECK(logits.is_contiguous() && targets.is_contiguous() && targets.is_cuda() &&
                  targets.scalar_type() == at::kLong,
              "cross-entropy on CUDA wants contiguous logits and int64 targets on the device");
  const c10::cuda::CUDAGuard guard(logits.device());
  C10_CUDA_CHECK(launch_cross_entropy({.logits = logits.mutable_data_ptr(),
                                       .targets = targets.const_data_ptr<std::int64_t>(),
                                       .losses = losses.mutable_data_ptr<float>(),
                                       .rows = logits.size(0),
                                       .columns = logits.size(1),
                                       .vocab = options.vocab,
                                       .ignored = kIgnoredTarget,
                                       .dtype = dtype_of(logits),
                                       .grad_scale = static_cast<float>(options.grad_scale),
                                       .gradient = options.gradient},
                                      c10::cuda::getCurrentCUDAStream()));
}

namespace {

constexpr std::int64_t kNarrowKeys = 64;
constexpr std::int64_t kWideKeys = 128;

DeltaScanLaunch launch_of(const DeltaScan& scan) {
  const std::int64_t key_dim = scan.asks.size(-1);
  const std::int64_t value_dim = scan.solved.size(-1) - key_dim;
  const float* const solved = scan.solved.const_data_ptr<float>();
  return {.new_values = solved,
          .reads = solved + value_dim,
          .solved_stride = scan.solved.size(-1),
          .asks = scan.asks.const_data_ptr<float>(),
          .leaves = scan.leaves.const_data_ptr<float>(),
          .scores = scan.scores.const_data_ptr<float>(),
          .through = scan.through.const_data_ptr<float>(),
          .chunks = scan.asks.size(0),
          .heads = scan.asks.size(1),
          .key_dim = key_dim,
          .value_dim = value_dim};
}

float* pointer_of(const at::Tensor& wanted) {
  return wanted.defined() ? wanted.mutable_data_ptr<float>() : nullptr;
}

}  // namespace

bool cuda_scans(const DeltaScan& scan) {
  constexpr int kAmpere = 8;
  constexpr std::int64_t kMostHeads = 65535;  // of the grid's second dimension
  const std::int64_t key_dim = scan.asks.size(-1);
  const std::int64_t value_dim = scan.solved.size(-1) - key_dim;
  return scan.in_tf32 && scan.asks.is_cuda() && cuda_major(scan.asks.device()) >= kAmpere &&
         scan.asks.scalar_type() == at::kFloat && scan.asks.size(2) == kScanChunk &&
         scan.asks.size(1) <= kMostHeads && (key_dim == kNarrowKeys || key_dim == kWideKeys) &&
         value_dim % kScanColumns == 0;
}

void cuda_scan(const DeltaScan& scan, const at::Tensor& state, const DeltaScanned& made) {
  const c10::cuda::CUDAGuard guard(state.device());
  DeltaScanLaunch launch = launch_of(scan);
  launch.state = state.mutable_data_ptr<float>();
  launch.output = made.output.mutable_data_ptr<float>();
  launch.states = pointer_of(made.states);
  launch.written = pointer_of(made.written);
  C10_CUDA_CHECK(launch_delta_scan(launch, c10::cuda::getCurrentCUDAStream()));
}

void cuda_scan_back(const DeltaScan& scan, const at::Tensor& gradient, const at::Tensor& states,
                    const at::Tensor& written) {
  const c10::cuda::CUDAGuard guard(gradient.device());
  DeltaScanLaunch launch = launch_of(scan);
  launch.gradient = gradient.const_data_ptr<float>();
  launch.states = states.mutable_data_ptr<float>();
  launch.written = written.mutable_data_ptr<float>();
  C10_CUDA_CHECK(launch_delta_scan_back(launch, c10::cuda::getCurrentCUDAStream()));
}

bool cuda_inverts(const at::Tensor& lower) {
  return lower.is_cuda() && lower.scalar_type() == at::kFloat && lower.is_contiguous() &&
         lower.size(-1) == kScanChunk;
}

at::Tensor cuda_unit_inverse(const at::Tensor& lower) {
  const c10::cuda::CUDAGuard guard(lower.device());
  at::Tensor inverse = at::empty_like(lower);
  C10_CUDA_CHECK(launch_unit_inverse(
      lower.const_data_ptr<float>(), inverse.mutable_data_ptr<float>(),
      lower.numel() / (kScanChunk * kScanChunk), c10::cuda::getCurrentCUDAStream()));
  return inverse;
}

void cuda_cast_to_fp8(const at::Tensor& from, const at::Tensor& scale, const at::Tensor& by_rows,
                      const at::Tensor& by_columns) {
  const c10::cuda::CUDAGuard guard(from.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto pointer_to = [](const at::Tensor& wanted) {
    return wanted.defined() ? static_cast<std::uint8_t*>(wanted.mutable_data_ptr()) : nullptr;
  };
  const at::Tensor largest = at::empty({}, from.options().dtype(at::kInt));
  const at::Tensor& made = by_rows.defined() ? by_rows : by_columns;
  const Fp8CastLaunch launch = {.from = from.const_data_ptr(),
                                .rows = from.size(0),
                                .columns = from.size(1),
                                .dtype = dtype_of(from),
                                .is_e5m2 = made.scalar_type() == at::kFloat8_e5m2,
                                .largest = static_cast<std::uint32_t*>(largest.mutable_data_ptr()),
                                .scale = scale.mutable_data_ptr<float>(),
                                .to = pointer_to(by_rows),
                                .turned = pointer_to(by_columns),
                                .padded_rows = by_columns.defined() ? by_columns.size(1) : 0};
  C10_CUDA_CHECK(launch_fp8_largest(launch, stream));
  C10_CUDA_CHECK(launch_fp8_cast(launch, stream));
}

int cuda_major(at::Device device) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major;
}

int cuda_minor(at::Device device) {
  int minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
  return minor;
}

}  // namespace sluice::engine
