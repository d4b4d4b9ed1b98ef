#include "engine/model/ops/cuda_kernels.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "engine/model/kernels/cuda_launch.h"

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

int cuda_major(at::Device device) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major;
}

}  // namespace sluice::engine
