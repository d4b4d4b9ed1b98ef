#include "engine/model/decoder/attention_pass.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "engine/model/kv_cache.h"
#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/gated_norm.h"

namespace sluice::engine {

AttentionPass::AttentionPass(const BlockPass& pass, const BlockRotary& rotary,
                             const at::Tensor& input, std::int64_t layer, std::int64_t first)
    : pass_(pass),
      input_(input),
      layer_(layer),
      norm_(pass.norm(pass.places.norm1)),
      qkv_(pass.products(pass.places.qkv)),
      projection_(pass.products(pass.places.projection)),
      turns_(rotary.exists()),
      start_{.first = first, .documents = pass.context.documents} {
  const AttentionSpec& spec = pass.spec.attention;
  const Documents* const documents = pass.context.documents;
  options_ = {.heads = {.heads = spec.heads, .kv_heads = spec.kv_heads, .head_dim = spec.head_dim},
              .reach = {.window = spec.window, .documents = documents},
              .dropout = dropout_at(pass.context, DropoutSite::kAttention, spec.dropout),
              .deterministic = pass.context.deterministic,
              .scale = spec.scale(layer),
              .soft_cap = spec.soft_cap};
  if (spec.sinks) options_.sinks = pass.w[pass.places.sinks];
  if (spec.in_parts && pass.pieces.cut() && spec.dropout == 0) parts_ = head_parts(spec.kv_heads);
  if (spec.head_norms)
    for (int i = 0; i < 2; ++i)
      head_factors_[static_cast<std::size_t>(i)] =
          rms_factor(pass.spec.norm, pass.w[pass.places.query_norm + i]);
  if (!turns_) return;
  // The length that sets the frequencies, if all documents here share it.
  const std::int64_t tokens =
      documents == nullptr ? first + input.size(1) : documents->padded_tokens;
  frequencies_ = rotary.at(tokens);
  of_rows_ = rotary.of_tokens(documents, input.device());
}

HeadNorms AttentionPass::head_norms() const {
  return {.weights = {head_factors_[0], head_factors_[1]}, .epsilon = pass_.spec.epsilon};
}

Rotary AttentionPass::rotary(const HeadShape& heads) const {
  return {.heads = heads, .frequencies = frequencies_, .place = start_, .of_rows = of_rows_};
}

namespace {

// The columns of queries or gates, which alternate head by head: [B, T, heads * head_dim].
at::Tensor of_gated_queries(const at::Tensor& product, const HeadShape& heads, std::int64_t which) {
  return product.narrow(-1, 0, 2 * heads.query_width())
      .unflatten(-1, {heads.heads, 2, heads.head_dim})
      .select(3, which)
      .flatten(2);
}

}  // namespace

at::Tensor AttentionPass::sinks_of(const at::Tensor& of_all, std::int64_t part) const {
  if (!of_all.defined()) return {};
  const std::int64_t heads = options_.heads.heads / parts_;
  return of_all.narrow(0, part * heads, heads);
}

// ---- forward

// Moves the gates of a product's heads to `kept`. Returns queries, keys and values.
at::Tensor AttentionPass::without_gate(const at::Tensor& product, Kept& kept) const {
  const HeadShape& heads = options_.heads;
  kept.gate = of_gated_queries(product, heads, 1);
  return at::cat({of_gated_queries(product, heads, 0),
                  product.narrow(-1, 2 * heads.query_width(), 2 * heads.key_width())},
                 -1);
}

// The inverse for gradients.
at::Tensor AttentionPass::with_gate(const at::Tensor& gradient, const at::Tensor& grad_gate) const {
  const HeadShape& heads = options_.heads;
  const auto by_head = [&](const at::Tensor& of) {
    return of.narrow(-1, 0, heads.query_width()).unflatten(-1, {heads.heads, heads.head_dim});
  };
  return at::cat({at::stack({by_head(gradient), by_head(grad_gate)}, 3).flatten(2),
                  gradient.narrow(-1, heads.query_width(), 2 * heads.key_width())},
                 -1);
}

at::Tensor AttentionPass::normed_product(Kept& kept) const {
  Normed normed = norm_.normed(pass_.w, input_);
  at::Tensor qkv = qkv_.output(normed.output);
  normed.output.reset();
  kept.norm = std::move(normed);
  return pass_.spec.attention.output_gate ? without_gate(qkv, kept) : qkv;
}

// The heads of packed rows; without norms of heads these are already rotated.
HeadViews AttentionPass::turned_heads(const at::Tensor& packed, const HeadShape& heads) const {
  if (!pass_.spec.attention.head_norms) return HeadViews(packed, heads);
  const at::Tensor turned = norm_and_rotate(packed, head_norms(), rotary(heads));
  return HeadViews(
      split_heads(turned.narrow(-1, 0, heads.query_width()), heads.heads),
      split_heads(turned.narrow(-1, heads.query_width(), heads.key_width()), heads.kv_heads),
      HeadViews(packed, heads).value);
}

// Rotates queries and keys; in place, unless norms of heads come first.
HeadViews AttentionPass::turned(at::Tensor& qkv) const {
  if (turns_ && !pass_.spec.attention.head_norms) rotate(qkv, rotary(options_.heads));
  return turned_heads(qkv, options_.heads);
}

template <typename Visit>
void AttentionPass::for_each_part(const Visit& visit) const {
  AttentionOptions options = options_;
  for (std::int64_t index = 0; index < parts_; ++index) {
    const HeadPart part(options_.heads, parts_, index);
    options.heads = part.shape();
    options.sinks = sinks_of(options_.sinks, index);
    visit(index, part, options);
  }
}

Attended AttentionPass::attend_in_parts(at::Tensor& qkv) const {
  if (turns_ && !pass_.spec.attention.head_norms) rotate(qkv, rotary(options_.heads));
  Attended all = {
      .output = at::empty({qkv.size(0), qkv.size(1), options_.heads.query_width()}, qkv.options())};
  std::vector<at::Tensor> sums;
  for_each_part([&](std::int64_t /*index*/, const HeadPart& part, const AttentionOptions& options) {
    Attended some = attention(turned_heads(part.packed(qkv), part.shape()), options);
    part.queries(all.output).copy_(some.output);
    sums.push_back(std::move(some.logsumexp));
    // Nothing is drawn from these, but the kernels take them.
    all.philox_seed = std::move(some.philox_seed);
    all.philox_offset = std::move(some.philox_offset);
  });
  if (sums.front().defined()) all.logsumexp = at::stack(sums);
  return all;
}

// The branch, after its norm if it has one. `kept`: may be null.
at::Tensor AttentionPass::normed_branch(at::Tensor branch, Kept* kept) const {
  if (!pass_.spec.norms_branches()) return branch;
  Normed normed = pass_.norm(pass_.places.branch_norms[0]).normed(pass_.w, branch);
  if (kept != nullptr) {
    kept->branch = std::move(branch);
    kept->branch_rstd = std::move(normed.rstd);
  }
  return std::move(normed.output);
}

at::Tensor AttentionPass::forward(Kept& kept, bool keep) const {
  at::Tensor qkv = normed_product(kept);
  Attended attended = parts_ > 1 ? attend_in_parts(qkv) : attention(turned(qkv), options_);
  if (keep) kept.qkv = qkv;
  qkv.reset();
  at::Tensor branch = projection_.output(
      kept.gate.defined() ? sigmoid_gated(attended.output, kept.gate) : attended.output);
  if (keep) kept.attended = std::move(attended);
  return normed_branch(std::move(branch), keep ? &kept : nullptr);
}

at::Tensor AttentionPass::extend(KvCache& cache) const {
  Kept kept;
  at::Tensor qkv = normed_product(kept);
  const HeadViews heads = turned(qkv);
  cache.put(layer_, heads.key, heads.value);
  const std::int64_t positions = cache.length() + input_.size(1);
  const at::Tensor output = cache.length() == 0
                                ? attention(heads, options_).output
                                : attend_last({heads.query, cache.keys(layer_, positions),
                                               cache.values(layer_, positions)},
                                              options_);
  return normed_branch(
      projection_.output(kept.gate.defined() ? sigmoid_gated(output, kept.gate) : output), nullptr);
}

// ---- backward

// Whether the biases' sum is computed as gradients of heads are packed. The rotation comes later.
bool AttentionPass::sums_bias_with_heads() const {
  return !turns_ && parts_ == 1 && pass_.places.qkv.parts == 1;
}

// The gradient of the last product, also added to that of its bias.
at::Tensor AttentionPass::branch_gradient(Kept& kept, const at::Tensor& grad_middle,
                                          const UnitViews& gradients) const {
  const Dropout dropout = pass_.residual_dropout(DropoutSite::kProjection);
  const at::Tensor bias = gradient_of(gradients, pass_.places.projection.bias);
  if (!pass_.spec.norms_branches()) return drop_and_accumulate(grad_middle, dropout, bias);
  const at::Tensor branch = std::exchange(kept.branch, {});
  return drop_and_accumulate(
      pass_.branch_norm_backward(0, with_dropout(grad_middle, dropout), branch,
                                 std::exchange(kept.branch_rstd, {}), gradients),
      {}, bias);
}

// Replaces the gate by its gradient.
at::Tensor AttentionPass::attended_gradient(const at::Tensor& attended, const at::Tensor& gate,
                                            const at::Tensor& grad_branch,
                                            const UnitViews& gradients) const {
  const ProductsPass::Backward projection(projection_, grad_branch);
  projection.put_matrices(gradients, gate.defined() ? sigmoid_gated(attended, gate) : attended,
                          pass_.context.overwrites);
  at::Tensor gradient = projection.input_gradient();
  if (gate.defined()) sigmoid_gated_backward(gradient, attended, gate);
  return gradient;
}

void AttentionPass::norm_heads_backward(at::Tensor& gradient, const at::Tensor& packed,
                                        const HeadShape& heads, const UnitViews& gradients) const {
  const int place = pass_.places.query_norm;
  norm_and_rotate_backward(gradient, packed, head_norms(), {gradients[place], gradients[place + 1]},
                           rotary(heads));
}

// Returns the gradient of `qkv`; without norms of heads, that of the rotated ones.
at::Tensor AttentionPass::backward_whole(Kept& kept, const at::Tensor& grad_middle,
                                         const UnitViews& gradients) const {
  at::Tensor gradient = branch_gradient(kept, grad_middle, gradients);
  const at::Tensor qkv = std::move(kept.qkv);
  {
    const Attended attended = std::move(kept.attended);
    gradient = attended_gradient(attended.output, kept.gate, gradient, gradients);
    const at::Tensor bias =
        sums_bias_with_heads() ? gradient_of(gradients, pass_.places.qkv.bias) : at::Tensor();
    gradient = attention_backward(gradient, turned_heads(qkv, options_.heads), attended, options_,
                                  bias, gradient_of(gradients, pass_.places.sinks));
  }
  if (pass_.spec.attention.head_norms)
    norm_heads_backward(gradient, qkv, options_.heads, gradients);
  return gradient;
}

// The same, but in the memory of `qkv`.
at::Tensor AttentionPass::backward_in_parts(Kept& kept, const at::Tensor& grad_middle,
                                            const UnitViews& gradients) const {
  at::Tensor grad_output = branch_gradient(kept, grad_middle, gradients);
  at::Tensor qkv = std::move(kept.qkv);
  const Attended attended = std::move(kept.attended);
  const at::Tensor& sums = attended.logsumexp;
  grad_output = attended_gradient(attended.output, kept.gate, grad_output, gradients);
  for_each_part([&](std::int64_t index, const HeadPart& part, const AttentionOptions& options) {
    const at::Tensor packed = part.packed(qkv);
    const Attended some = {.output = part.queries(attended.output).contiguous(),
                           .logsumexp = sums.defined() ? sums.select(0, index) : sums,
                           .philox_seed = attended.philox_seed,
                           .philox_offset = attended.philox_offset};
    at::Tensor gradient = attention_backward(
        part.queries(grad_output).contiguous(), turned_heads(packed, part.shape()), some, options,
        {}, sinks_of(gradient_of(gradients, pass_.places.sinks), index));
    if (pass_.spec.attention.head_norms)
      norm_heads_backward(gradient, packed, part.shape(), gradients);
    part.put(gradient, qkv);
  });
  return qkv;
}

at::Tensor AttentionPass::backward(Kept kept, const at::Tensor& grad_middle,
                                   const UnitViews& gradients) const {
  at::Tensor grad_norm;
  {
    at::Tensor gradient = parts_ > 1 ? backward_in_parts(kept, grad_middle, gradients)
                                     : backward_whole(kept, grad_middle, gradients);
    if (turns_ && !pass_.spec.attention.head_norms)
      rotate_backward(gradient, rotary(options_.heads));
    if (kept.gate.defined()) gradient = with_gate(gradient, std::exchange(kept.gate, {}));
    const ProductsPass::Backward products(qkv_, gradient);
    if (!sums_bias_with_heads()) products.put_biases(gradients);
    products.put_matrices(gradients, norm_.normed(pass_.w, input_).output,
                          pass_.context.overwrites);
    grad_norm = products.input_gradient();
  }
  return norm_.backward(pass_.w, gradients, std::move(grad_norm), input_, kept.norm, grad_middle);
}

}  // namespace sluice::engine
