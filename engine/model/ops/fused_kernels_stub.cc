// fused_kernels.h in a build without CUDA: nothing is fused, so nothing else is called.
#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

[[noreturn]] void no_fused_kernels() {
  TORCH_CHECK(false, "this build of Sluice has no CUDA code, so it has no fused kernels");
}

}  // namespace

bool cuda_fuses(const at::Tensor& /*rows*/) { return false; }

FusedNorm fused_norm(const at::Tensor& /*input*/, const NormParameters& /*parameters*/) {
  no_fused_kernels();
}
FusedNorm fused_add_and_norm(at::Tensor& /*sum*/, const at::Tensor& /*residual*/,
                             const Dropout& /*dropout*/, const NormParameters& /*parameters*/) {
  no_fused_kernels();
}
void fused_norm_backward(at::Tensor& /*gradient*/, const FusedNormBackward& /*norm*/,
                         const FusedNormGradients& /*gradients*/) {
  no_fused_kernels();
}
at::Tensor fused_activation(const at::Tensor& /*input*/, Activation /*activation*/) {
  no_fused_kernels();
}
void fused_activation_backward(at::Tensor& /*input*/, at::Tensor& /*gradient*/,
                               Activation /*activation*/, const at::Tensor& /*bias_gradient*/) {
  no_fused_kernels();
}
bool cuda_fuses_halves(const at::Tensor& /*rows*/) { return false; }
at::Tensor fused_gated(const at::Tensor& /*gate_and_up*/, const GateRule& /*rule*/) {
  no_fused_kernels();
}
void fused_gated_backward(at::Tensor& /*gate_and_up*/, at::Tensor& /*gradient*/,
                          const GateRule& /*rule*/) {
  no_fused_kernels();
}
at::Tensor fused_sum_of_rows(const at::Tensor& /*rows*/, const at::Tensor& /*places*/,
                             const at::Tensor& /*weights*/) {
  no_fused_kernels();
}
bool cuda_rotates(const at::Tensor& /*packed*/, const Rotary& /*rotary*/) { return false; }
bool cuda_rotates_normed(const at::Tensor& /*packed*/, const Rotary& /*rotary*/) { return false; }
void fused_rotate(const at::Tensor& /*from*/, at::Tensor& /*to*/, const HeadNorms* /*norms*/,
                  const Rotary& /*rotary*/) {
  no_fused_kernels();
}
void fused_rotate_backward(at::Tensor& /*gradient*/, const at::Tensor* /*from*/,
                           const HeadNorms* /*norms*/, const HeadNormWeights* /*gradients*/,
                           const Rotary& /*rotary*/) {
  no_fused_kernels();
}
void fused_add_residual(at::Tensor& /*sum*/, const at::Tensor& /*residual*/,
                        const Dropout& /*dropout*/) {
  no_fused_kernels();
}
at::Tensor fused_dropout_and_sum(const at::Tensor& /*rows*/, const Dropout& /*dropout*/,
                                 const at::Tensor& /*bias_gradient*/) {
  no_fused_kernels();
}
void fused_gather(const QkvGradients& /*parts*/, at::Tensor& /*gathered*/,
                  const at::Tensor& /*bias_gradient*/) {
  no_fused_kernels();
}

}  // namespace sluice::engine
