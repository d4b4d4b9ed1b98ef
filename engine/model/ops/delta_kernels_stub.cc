// delta_kernels.h in a build without CUDA: nothing fits, so nothing else is called.
#include "engine/model/ops/delta_kernels.h"

namespace sluice::engine {
namespace {

[[noreturn]] void no_delta_kernels() {
  TORCH_CHECK(false, "this build of Sluice has no CUDA code, so it has no kernels of delta rules");
}

}  // namespace

bool cuda_convolves(const at::Tensor& /*input*/, const at::Tensor& /*weight*/) { return false; }
at::Tensor fused_conv_silu(const at::Tensor& /*input*/, const at::Tensor& /*weight*/,
                           const Documents* /*documents*/) {
  no_delta_kernels();
}
void fused_conv_silu_backward(const at::Tensor& /*grad_output*/, const at::Tensor& /*input*/,
                              const at::Tensor& /*weight*/, const Documents* /*documents*/,
                              const ConvGradients& /*gradients*/) {
  no_delta_kernels();
}
bool cuda_norms_gated(const at::Tensor& /*input*/, const at::Tensor& /*gate*/,
                      const at::Tensor& /*weight*/) {
  return false;
}
at::Tensor fused_gated_norm(const at::Tensor& /*input*/, const at::Tensor& /*gate*/,
                            const at::Tensor& /*weight*/, double /*epsilon*/) {
  no_delta_kernels();
}
void fused_gated_norm_backward(const at::Tensor& /*input*/, const at::Tensor& /*gate*/,
                               const at::Tensor& /*weight*/, double /*epsilon*/,
                               const GatedNormGradients& /*gradients*/) {
  no_delta_kernels();
}

bool cuda_prepares(const PartTensors& /*part*/) { return false; }
PreparedRows cuda_prepare(const PartTensors& /*part*/, const DeltaFactors& /*factors*/) {
  no_delta_kernels();
}
AlongRows cuda_finish(const PartTensors& /*part*/, const DeltaFactors& /*factors*/,
                      const ChunkRows& /*rows*/, const RowGradients& /*of*/,
                      const PartTensors& /*gradients*/) {
  no_delta_kernels();
}

}  // namespace sluice::engine
