#include "engine/model/ops/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/cuda_attention.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/plain_attention.h"

namespace sluice::engine {
namespace {

enum class Kernel : std::uint8_t { kFlashCpu, kCuda, kPlain };

Kernel kernel_for(const at::Tensor& query, const AttentionOptions& options) {
  if (query.is_cpu()) return options.dropout.active() ? Kernel::kPlain : Kernel::kFlashCpu;
  return has_cuda_attention(query, options.heads.head_dim) ? Kernel::kCuda : Kernel::kPlain;
}

at::Tensor packed_like(const at::Tensor& query, const HeadShape& shape) {
  return at::empty({query.size(0), query.size(2), shape.width()}, query.options());
}

at::Tensor gather(const HeadGradients& heads, const HeadShape& shape,
                  const at::Tensor& bias_gradient) {
  at::Tensor gathered = packed_like(heads.query, shape);
  // No copies: the kernels write what merge_heads() wants.
  const at::Tensor query = merge_heads(heads.query);
  const at::Tensor key = merge_heads(heads.key);
  const at::Tensor value = merge_heads(heads.value);
  if (cuda_fuses(query) && cuda_fuses(key) && cuda_fuses(value)) {
    fused_gather({query, key, value}, gathered, bias_gradient);
    return gathered;
  }
  gathered.narrow(-1, 0, shape.query_width()).copy_(query);
  gathered.narrow(-1, shape.query_width(), shape.key_width()).copy_(key);
  gathered.narrow(-1, shape.query_width() + shape.key_width(), shape.key_width()).copy_(value);
  accumulate_bias_gradient(bias_gradient, gathered);
  return gathered;
}

PlainAttentionOptions plain_options(const AttentionOptions& options) {
  return {.reach = options.reach, .dropout = options.dropout, .scale = options.scale};
}

at::Tensor plain_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                          const AttentionOptions& options, const at::Tensor& bias_gradient) {
  const at::Tensor gradient = packed_like(heads.query, options.heads);
  plain_attention_backward(grad_heads, heads, plain_options(options),
                           HeadViews(gradient, options.heads));
  accumulate_bias_gradient(bias_gradient, gradient);
  return gradient;
}

// What the kernel for the CPU takes: a key for every query, and a mask to add unless it is causal.
struct FlashCpu {
  FlashCpu(const HeadViews& heads, const AttentionReach& reach)
      : key(repeat_heads(heads.key, heads.query.size(1))),
        value(repeat_heads(heads.value, heads.query.size(1))) {
    const std::int64_t tokens = heads.query.size(2);
    if (!reach.is_short(tokens)) return;
    const at::Tensor hidden = hidden_keys(reach, tokens, heads.query.device()).unsqueeze(1);
    mask = at::zeros(hidden.sizes(), heads.query.options())
               .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  bool is_causal() const { return !mask; }

  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
};

HeadGradients flash_cpu_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                 const Attended& attended, const AttentionOptions& options) {
  const FlashCpu flash(heads, options.reach);
  auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_heads, heads.query, flash.key, flash.value,
      split_heads(attended.output, options.heads.heads), attended.logsumexp, 0.0, flash.is_causal(),
      flash.mask, options.scale);
  return {std::move(query), sum_groups(key, options.heads.kv_heads),
          sum_groups(value, options.heads.kv_heads)};
}

}  // namespace

Attended attention(const HeadViews& heads, const AttentionOptions& options) {
  Attended attended;
  switch (kernel_for(heads.query, options)) {
    case Kernel::kPlain:
      attended.output = plain_attention(heads, plain_options(options));
      return attended;
    case Kernel::kFlashCpu: {
      const FlashCpu flash(heads, options.reach);
      auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          heads.query, flash.key, flash.value, 0.0, flash.is_causal(), flash.mask, options.scale);
      attended.output = merge_heads(output);
      attended.logsumexp = std::move(logsumexp);
      return attended;
    }
    case Kernel::kCuda:
      return cuda_attention(heads, options);
  }
  return attended;
}

at::Tensor attention_backward(const at::Tensor& grad_output, const HeadViews& heads,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient) {
  const at::Tensor grad_heads = split_heads(grad_output, options.heads.heads);
  switch (kernel_for(heads.query, options)) {
    case Kernel::kPlain:
      return plain_backward(grad_heads, heads, options, bias_gradient);
    case Kernel::kFlashCpu:
      return gather(flash_cpu_backward(grad_heads, heads, attended, options), options.heads,
                    bias_gradient);
    case Kernel::kCuda:
      return gather(cuda_attention_backward(grad_heads, heads, attended, options), options.heads,
                    bias_gradient);
  }
  return {};
}

}  // namespace sluice::engine
