#include "engine/model/ops/attention.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "engine/model/fp32_pieces.h"
#include "engine/model/ops/attention_sinks.h"
#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/cuda_attention.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {

namespace {

enum class Kernel : std::uint8_t { kFlashCpu, kFlashCpuInFp32, kCuda, kPlain };

Kernel kernel_for(const at::Tensor& query, const AttentionOptions& options) {
  if (options.soft_cap > 0) return Kernel::kPlain;
  if (query.is_cpu()) {
    if (options.dropout.active()) return Kernel::kPlain;
    return multiplies_in_fp32(query) ? Kernel::kFlashCpuInFp32 : Kernel::kFlashCpu;
  }
  return has_cuda_attention(query, options.heads.head_dim, options.dropout.active())
             ? Kernel::kCuda
             : Kernel::kPlain;
}

at::Tensor packed_like(const at::Tensor& query, const HeadShape& shape) {
  return at::empty({query.size(0), query.size(2), shape.width()}, query.options());
}

at::Tensor gather(const HeadGradients& heads, const HeadShape& shape,
                  const at::Tensor& bias_gradient) {
  at::Tensor gathered = packed_like(heads.query, shape);
  // No copies: the kernels write in the layout that merge_heads() needs.
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
  return {.reach = options.reach,
          .dropout = options.dropout,
          .scale = options.scale,
          .soft_cap = options.soft_cap,
          .sinks = options.sinks};
}

at::Tensor plain_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                          const AttentionOptions& options, const at::Tensor& bias_gradient,
                          const at::Tensor& sink_gradient) {
  const at::Tensor gradient = packed_like(heads.query, options.heads);
  plain_attention_backward(grad_heads, heads, plain_options(options),
                           HeadViews(gradient, options.heads), sink_gradient);
  accumulate_bias_gradient(bias_gradient, gradient);
  return gradient;
}

// The mask to add to the scores; nothing if attention is only causal.
std::optional<at::Tensor> mask_of(const AttentionReach& reach, std::int64_t tokens,
                                  const at::TensorOptions& numbers) {
  if (!reach.is_short(tokens)) return std::nullopt;
  const at::Tensor hidden = hidden_keys(reach, tokens, numbers.device()).unsqueeze(1);
  return at::zeros(hidden.sizes(), numbers)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

// The inputs of the CPU kernel: a key for every query, and an additive mask unless attention is
// only causal.
struct FlashCpu {
  FlashCpu(const HeadViews& heads, std::optional<at::Tensor> added)
      : key(repeat_heads(heads.key, heads.query.size(1))),
        value(repeat_heads(heads.value, heads.query.size(1))),
        mask(std::move(added)) {}
  FlashCpu(const HeadViews& heads, const AttentionReach& reach)
      : FlashCpu(heads, mask_of(reach, heads.query.size(2), heads.query.options())) {}
  bool is_causal() const { return !mask; }

  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
};

// Some sequences, and some key heads with their queries.
struct HeadPiece {
  std::int64_t first_sequence = 0;
  std::int64_t sequences = 0;
  std::int64_t first_kv_head = 0;
  std::int64_t kv_heads = 0;
  std::int64_t groups = 1;

  at::Tensor of_sequences(const at::Tensor& all) const {
    return all.narrow(0, first_sequence, sequences);
  }
  at::Tensor of_queries(const at::Tensor& all) const {
    return of_sequences(all).narrow(1, first_kv_head * groups, kv_heads * groups);
  }
  at::Tensor of_keys(const at::Tensor& all) const {
    return of_sequences(all).narrow(1, first_kv_head, kv_heads);
  }
  HeadViews fp32(const HeadViews& heads) const {
    return {of_queries(heads.query).to(at::kFloat), of_keys(heads.key).to(at::kFloat),
            of_keys(heads.value).to(at::kFloat)};
  }
  // There is one mask per sequence, or one for all; see mask_of_pieces().
  std::optional<at::Tensor> fp32_mask(const std::optional<at::Tensor>& mask) const {
    if (!mask || mask->size(0) == 1) return mask;
    return of_sequences(*mask).to(at::kFloat);
  }
};

template <typename Visit>
void for_each_fp32_piece(const HeadViews& heads, std::int64_t positions, const Visit& visit) {
  const std::int64_t sequences = heads.query.size(0);
  const std::int64_t kv_heads = heads.key.size(1);
  const std::int64_t groups = heads.query.size(1) / kv_heads;
  const Fp32AttentionPiece piece(sequences, kv_heads, groups * positions * heads.query.size(3));
  for (std::int64_t first = 0; first < sequences; first += piece.sequences)
    for (std::int64_t head = 0; head < kv_heads; head += piece.kv_heads)
      visit(HeadPiece{.first_sequence = first,
                      .sequences = std::min(piece.sequences, sequences - first),
                      .first_kv_head = head,
                      .kv_heads = std::min(piece.kv_heads, kv_heads - head),
                      .groups = groups});
}

// Masks of each sequence stay in the queries' type and are widened by piece; a single mask for all
// is fp32.
std::optional<at::Tensor> mask_of_pieces(const AttentionReach& reach, const at::Tensor& query) {
  auto mask = mask_of(reach, query.size(2), query.options());
  if (mask && mask->size(0) == 1) mask = mask->to(at::kFloat);
  return mask;
}

Attended flash_cpu_in_fp32(const HeadViews& heads, const AttentionOptions& options) {
  const at::Tensor& query = heads.query;
  const at::TensorOptions fp32 = query.options().dtype(at::kFloat);
  const auto mask = mask_of_pieces(options.reach, query);
  Attended attended = {
      .output =
          at::empty({query.size(0), query.size(2), options.heads.query_width()}, query.options()),
      .logsumexp = at::empty({query.size(0), query.size(2), query.size(1)}, fp32).transpose(1, 2)};
  const at::Tensor outputs = split_heads(attended.output, options.heads.heads);
  for_each_fp32_piece(heads, query.size(2), [&](const HeadPiece& piece) {
    const HeadViews some = piece.fp32(heads);
    const FlashCpu flash(some, piece.fp32_mask(mask));
    const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        some.query, flash.key, flash.value, 0.0, flash.is_causal(), flash.mask, options.scale);
    piece.of_queries(outputs).copy_(output);
    piece.of_queries(attended.logsumexp).copy_(logsumexp);
  });
  return attended;
}

at::Tensor flash_cpu_backward_in_fp32(const at::Tensor& grad_heads, const HeadViews& heads,
                                      const Attended& attended, const AttentionOptions& options,
                                      const at::Tensor& bias_gradient) {
  const at::Tensor& query = heads.query;
  const auto mask = mask_of_pieces(options.reach, query);
  const at::Tensor gradient = packed_like(query, options.heads);
  const HeadViews gradients(gradient, options.heads);
  const at::Tensor outputs = split_heads(attended.output, options.heads.heads);
  for_each_fp32_piece(heads, query.size(2), [&](const HeadPiece& piece) {
    const HeadViews some = piece.fp32(heads);
    const FlashCpu flash(some, piece.fp32_mask(mask));
    const auto [of_query, of_key, of_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            piece.of_queries(grad_heads).to(at::kFloat), some.query, flash.key, flash.value,
            piece.of_queries(outputs).to(at::kFloat), piece.of_queries(attended.logsumexp), 0.0,
            flash.is_causal(), flash.mask, options.scale);
    piece.of_queries(gradients.query).copy_(of_query);
    piece.of_keys(gradients.key).copy_(sum_groups(of_key, piece.kv_heads));
    piece.of_keys(gradients.value).copy_(sum_groups(of_value, piece.kv_heads));
  });
  accumulate_bias_gradient(bias_gradient, gradient);
  return gradient;
}

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

Attended flash_cpu(const HeadViews& heads, const AttentionOptions& options) {
  const FlashCpu flash(heads, options.reach);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      heads.query, flash.key, flash.value, 0.0, flash.is_causal(), flash.mask, options.scale);
  return {.output = merge_heads(output), .logsumexp = std::move(logsumexp)};
}

// Without the sinks.
Attended attend_by_kernel(Kernel kernel, const HeadViews& heads, const AttentionOptions& options) {
  switch (kernel) {
    case Kernel::kFlashCpu:
      return flash_cpu(heads, options);
    case Kernel::kFlashCpuInFp32:
      return flash_cpu_in_fp32(heads, options);
    case Kernel::kCuda:
      return cuda_attention(heads, options);
    case Kernel::kPlain:
      break;
  }
  return {};
}

}  // namespace

Attended attention(const HeadViews& heads, const AttentionOptions& options) {
  const Kernel kernel = kernel_for(heads.query, options);
  if (kernel == Kernel::kPlain) return {.output = plain_attention(heads, plain_options(options))};
  Attended attended = attend_by_kernel(kernel, heads, options);
  if (options.sinks.defined()) add_sinks(attended, options.sinks);
  return attended;
}

at::Tensor attention_backward(const at::Tensor& grad_output, const HeadViews& heads,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient, const at::Tensor& sink_gradient) {
  const at::Tensor grad_heads = split_heads(grad_output, options.heads.heads);
  const Kernel kernel = kernel_for(heads.query, options);
  if (sink_gradient.defined() && kernel != Kernel::kPlain)
    accumulate_sink_gradient(sink_gradient, grad_output, attended, options.sinks);
  switch (kernel) {
    case Kernel::kPlain:
      return plain_backward(grad_heads, heads, options, bias_gradient, sink_gradient);
    case Kernel::kFlashCpu:
      return gather(flash_cpu_backward(grad_heads, heads, attended, options), options.heads,
                    bias_gradient);
    case Kernel::kFlashCpuInFp32:
      return flash_cpu_backward_in_fp32(grad_heads, heads, attended, options, bias_gradient);
    case Kernel::kCuda:
      return gather(cuda_attention_backward(grad_heads, heads, attended, options), options.heads,
                    bias_gradient);
  }
  return {};
}

namespace {

// [queries, keys], true where one of the last positions sees a key.
at::Tensor seen_keys(std::int64_t queries, std::int64_t keys, std::int64_t window,
                     at::Device device) {
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor distance = at::arange(keys - queries, keys, numbers).unsqueeze(1) -
                              at::arange(keys, numbers).unsqueeze(0);
  const at::Tensor seen = distance >= 0;
  return window == 0 ? seen : seen.logical_and(distance < window);
}

// One product over all heads of a key; the softmax has a column for the sinks, if there are any.
at::Tensor attend_plainly(const HeadViews& heads, const std::optional<at::Tensor>& seen,
                          const AttentionOptions& options, const at::Tensor& sinks) {
  const at::ScalarType wide = at::toOpMathType(heads.query.scalar_type());
  const at::Tensor& query = heads.query;
  const std::int64_t sequences = query.size(0);
  const std::int64_t kv_heads = heads.key.size(1);
  const std::int64_t keys = heads.key.size(2);
  const double factor = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
  at::Tensor scores =
      at::matmul(query.to(wide).mul(factor).reshape({sequences, kv_heads, -1, query.size(3)}),
                 heads.key.to(wide).transpose(2, 3))
          .view({sequences, query.size(1), query.size(2), keys});
  if (options.soft_cap > 0) scores.div_(options.soft_cap).tanh_().mul_(options.soft_cap);
  if (seen) scores.masked_fill_(seen->logical_not(), -std::numeric_limits<double>::infinity());
  if (sinks.defined())
    scores = at::cat({scores, sinks.to(wide).expand({-1, -1, query.size(2), 1})}, -1);
  const at::Tensor probabilities = at::softmax(scores, -1).narrow(-1, 0, keys);
  return at::matmul(probabilities.reshape({sequences, kv_heads, -1, keys}), heads.value.to(wide))
      .view(query.sizes())
      .to(query.scalar_type());
}

// `seen`: none if all queries see all keys. `sinks`: of each sequence's heads, [B, heads, 1, 1], or
// undefined.
at::Tensor attend_seen(const HeadViews& heads, const std::optional<at::Tensor>& seen,
                       const AttentionOptions& options, const at::Tensor& sinks) {
  const std::optional<double> scale = options.scale;
  const auto attend = [&](const HeadViews& some, const at::Tensor& of_some) {
    if (of_some.defined() || options.soft_cap > 0)
      return attend_plainly(some, seen, options, of_some);
    if (!seen)
      return at::scaled_dot_product_attention(some.query, some.key, some.value, {}, 0.0,
                                              /*is_causal=*/false, scale, /*enable_gqa=*/true);
    // The fused kernels that have masks need a key for every query.
    const std::int64_t count = some.query.size(1);
    return at::scaled_dot_product_attention(some.query, repeat_heads(some.key, count),
                                            repeat_heads(some.value, count), seen, 0.0,
                                            /*is_causal=*/false, scale);
  };
  if (!multiplies_in_fp32(heads.query)) return merge_heads(attend(heads, sinks));
  at::Tensor output = at::empty(
      {heads.query.size(0), heads.query.size(2), heads.query.size(1) * heads.query.size(3)},
      heads.query.options());
  const at::Tensor outputs = split_heads(output, heads.query.size(1));
  for_each_fp32_piece(heads, heads.key.size(2), [&](const HeadPiece& piece) {
    piece.of_queries(outputs).copy_(
        attend(piece.fp32(heads), sinks.defined() ? piece.of_queries(sinks) : sinks));
  });
  return output;
}

}  // namespace

at::Tensor attend_last(const HeadViews& heads, const AttentionOptions& options) {
  constexpr std::int64_t kMaskedQueries = 128;  // at a time
  const std::int64_t queries = heads.query.size(2);
  const std::int64_t before = heads.key.size(2) - queries;
  const std::int64_t window = options.reach.window;
  if ((queries > 1 || options.sinks.defined()) && !heads.query.is_cpu() && options.soft_cap == 0 &&
      has_cuda_attention(heads.query, options.heads.head_dim, /*drops=*/false)) {
    Attended attended = cuda_attend_last(heads, options);
    if (options.sinks.defined()) add_sinks(attended, options.sinks);
    return attended.output;
  }
  at::Tensor sinks;
  if (options.sinks.defined())
    sinks = options.sinks.view({1, -1, 1, 1}).expand({heads.query.size(0), -1, 1, 1});
  std::vector<at::Tensor> outputs;
  for (std::int64_t first = 0; first < queries; first += kMaskedQueries) {
    const std::int64_t count = std::min(kMaskedQueries, queries - first);
    const std::int64_t end = before + first + count;
    const std::int64_t begin =
        window == 0 ? 0 : std::max<std::int64_t>(before + first + 1 - window, 0);
    const auto seen_by_some = [&](const at::Tensor& all) {
      return all.narrow(2, begin, end - begin);
    };
    std::optional<at::Tensor> seen;
    if (count > 1) seen = seen_keys(count, end - begin, window, heads.query.device());
    outputs.push_back(attend_seen(
        {heads.query.narrow(2, first, count), seen_by_some(heads.key), seen_by_some(heads.value)},
        seen, options, sinks));
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, 1);
}

}  // namespace sluice::engine
