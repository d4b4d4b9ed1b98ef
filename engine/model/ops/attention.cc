#include "engine/model/ops/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>

#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/cuda_attention.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/plain_attention.h"

namespace sluice::engine {
namespace {

enum class Kernel : std::uint8_t { kFlashCpu, kCuda, kPlain };

Kernel kernel_for(const at::Tensor& qkv, const AttentionOptions& options) {
  if (qkv.is_cpu()) return options.dropout.active() ? Kernel::kPlain : Kernel::kFlashCpu;
  const std::int64_t head_dim = qkv.size(-1) / 3 / options.heads;
  return has_cuda_attention(qkv, head_dim) ? Kernel::kCuda : Kernel::kPlain;
}

// The gradients side by side, as qkv is.
at::Tensor gather(const HeadGradients& heads, const at::Tensor& qkv,
                  const at::Tensor& bias_gradient) {
  at::Tensor gathered = at::empty_like(qkv);
  // No copies: the kernels write what merge_heads() wants.
  const at::Tensor query = merge_heads(heads.query);
  const at::Tensor key = merge_heads(heads.key);
  const at::Tensor value = merge_heads(heads.value);
  if (cuda_fuses(query) && cuda_fuses(key) && cuda_fuses(value)) {
    fused_gather({query, key, value}, gathered, bias_gradient);
    return gathered;
  }
  const std::int64_t hidden = query.size(-1);
  gathered.narrow(-1, 0, hidden).copy_(query);
  gathered.narrow(-1, hidden, hidden).copy_(key);
  gathered.narrow(-1, 2 * hidden, hidden).copy_(value);
  accumulate_bias_gradient(bias_gradient, gathered);
  return gathered;
}

at::Tensor plain_backward(const at::Tensor& grad_heads, const at::Tensor& qkv,
                          const AttentionOptions& options, const at::Tensor& bias_gradient) {
  at::Tensor grad_qkv = at::empty_like(qkv);
  plain_attention_backward(grad_heads, HeadViews(qkv, options.heads), options.dropout,
                           HeadViews(grad_qkv, options.heads));
  accumulate_bias_gradient(bias_gradient, grad_qkv);
  return grad_qkv;
}

HeadGradients flash_cpu_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                 const Attended& attended, const AttentionOptions& options) {
  HeadGradients gradients;
  std::tie(gradients.query, gradients.key, gradients.value) =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad_heads, heads.query, heads.key, heads.value,
          split_heads(attended.output, options.heads), attended.logsumexp, 0.0,
          /*is_causal=*/true);
  return gradients;
}

}  // namespace

Attended attention(const at::Tensor& qkv, const AttentionOptions& options) {
  const HeadViews heads(qkv, options.heads);
  Attended attended;
  switch (kernel_for(qkv, options)) {
    case Kernel::kPlain:
      attended.output = plain_attention(heads, options.dropout);
      return attended;
    case Kernel::kFlashCpu: {
      auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          heads.query, heads.key, heads.value, 0.0, /*is_causal=*/true);
      attended.output = merge_heads(output);
      attended.logsumexp = std::move(logsumexp);
      return attended;
    }
    case Kernel::kCuda:
      return cuda_attention(heads, options);
  }
  return attended;
}

at::Tensor attention_backward(const at::Tensor& grad_output, const at::Tensor& qkv,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient) {
  const Kernel kernel = kernel_for(qkv, options);
  const at::Tensor grad_heads = split_heads(grad_output, options.heads);
  if (kernel == Kernel::kPlain) return plain_backward(grad_heads, qkv, options, bias_gradient);
  const HeadViews heads(qkv, options.heads);
  return gather(kernel == Kernel::kFlashCpu
                    ? flash_cpu_backward(grad_heads, heads, attended, options)
                    : cuda_attention_backward(grad_heads, heads, attended, options),
                qkv, bias_gradient);
}

}  // namespace sluice::engine
