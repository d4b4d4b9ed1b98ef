#include "engine/model/ops/gated_mlp.h"

#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {

at::Tensor silu_gated(const at::Tensor& gate_and_up) {
  if (cuda_fuses_halves(gate_and_up)) return fused_silu_gated(gate_and_up);
  const std::int64_t width = gate_and_up.size(-1) / 2;
  return at::silu(gate_and_up.narrow(-1, 0, width)).mul_(gate_and_up.narrow(-1, width, width));
}

void silu_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient) {
  if (cuda_fuses_halves(gate_and_up) && gradient.is_contiguous())
    return fused_silu_gated_backward(gate_and_up, gradient);
  const std::int64_t width = gate_and_up.size(-1) / 2;
  at::Tensor gate = gate_and_up.narrow(-1, 0, width);
  at::Tensor up = gate_and_up.narrow(-1, width, width);
  const at::Tensor activated = at::silu(gate);
  const at::Tensor grad_gate = at::silu_backward(gradient.mul(up), gate);
  const at::Tensor product = activated.mul(up);
  up.copy_(gradient.mul(activated));
  gate.copy_(grad_gate);
  gradient.copy_(product);
}

}  // namespace sluice::engine
