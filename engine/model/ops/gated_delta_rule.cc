#include "engine/model/ops/gated_delta_rule.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/model/ops/chunked_tokens.h"
#include "engine/model/ops/cuda_kernels.h"
#include "engine/model/ops/delta_kernels.h"
#include "engine/model/ops/delta_part.h"
#include "engine/model/ops/tf32_scope.h"

namespace sluice::engine {
namespace {

constexpr double kLengthEpsilon = 1e-6;  // as in transformers

at::ScalarType wide_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor row_sums(const at::Tensor& of) { return at::sum(of, {-1}); }
at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return row_sums(a.mul(b)); }

// [..., C] times each row of [..., C, D].
at::Tensor scaled(const at::Tensor& rows, const at::Tensor& by) {
  return rows.mul(by.unsqueeze(-1));
}

// Rows divided by their lengths.
struct UnitRows {
  explicit UnitRows(const at::Tensor& rows)
      : inverse(at::rsqrt(at::sum(rows.square(), {-1}, /*keepdim=*/true).add_(kLengthEpsilon))),
        unit(rows.mul(inverse)) {}
  at::Tensor input_gradient(const at::Tensor& gradient) const {
    return gradient.sub(scaled(unit, dot(unit, gradient))).mul_(inverse);
  }
  at::Tensor inverse;
  at::Tensor unit;
};

// The chunks of a part's heads, each tensor [chunks, B * value heads, ...]. In a chunk the values
// that are written are new_values - reads S, with the state S before it: solutions of
// (I + writes) [new_values, reads] = [rate v, rate from_begin k].
class DeltaChunks {
 public:
  DeltaChunks(const PartTensors& part, const ChunkedTokens& tokens)
      : part_(part),
        tokens_(tokens),
        in_tf32_(part.query.is_cuda() && c10::isReducedFloatingType(part.query.scalar_type())) {
    const at::Tensor rate = tokens.chunked(part.rate.unsqueeze(-1)).squeeze(-1);
    const at::Tensor decay = tokens.chunked(part.decay.unsqueeze(-1)).squeeze(-1);
    const at::Tensor sums = tokens.sums(decay);
    rate_ = rate.flatten(1, 2);
    between_ = tokens.between(sums).flatten(1, 2);
    from_begin_ = tokens.from_begin(sums).flatten(1, 2);
    to_end_ = tokens.to_end(sums).flatten(1, 2);
    through_ = from_begin_.narrow(-1, tokens.chunk() - 1, 1).contiguous().unsqueeze(-1);
    at::Tensor wanted = prepare();
    similar_ = product(key_, key_.mT()).mul_(between_).tril_(-1);
    scores_ = product(query_, key_.mT()).mul_(between_);
    writes_ = scaled(similar_, rate_);
    if (cuda_inverts(writes_)) inverse_ = cuda_unit_inverse(writes_);
    solved_ = solution(wanted, /*transposed=*/false).contiguous();
  }

  struct Scanned {
    at::Tensor output;
    at::Tensor states;   // before each chunk; if wanted
    at::Tensor written;  // if wanted
  };
  // `state` [B * value heads, key_dim, value_dim]: before the first chunk, and then after the last.
  Scanned scan(at::Tensor& state, bool keep) const {
    Scanned made = {.output = at::empty(value_.sizes(), value_.options())};
    if (keep) {
      made.states = at::empty({tokens_.count(), state.size(0), state.size(1), state.size(2)},
                              state.options());
      made.written = at::empty(value_.sizes(), value_.options());
    }
    if (cuda_scans(fused())) {
      cuda_scan(fused(), state, {made.output, made.states, made.written});
      return made;
    }
    const at::Tensor new_values = solved_.narrow(-1, 0, value_.size(-1));
    const at::Tensor reads = solved_.narrow(-1, value_.size(-1), key_.size(-1));
    for (std::int64_t n = 0; n < tokens_.count(); ++n) {
      const at::Tensor written = at::baddbmm(new_values[n], reads[n], state, 1, -1);
      made.output[n].copy_(at::bmm(asks_[n], state).baddbmm_(scores_[n], written));
      if (keep) {
        made.states[n].copy_(state);
        made.written[n].copy_(written);
      }
      state = state.mul(through_[n]).baddbmm_(leaves_[n].mT(), written);
    }
    return made;
  }

  void backward(const at::Tensor& grad_output, const PartTensors& gradients) const {
    at::Tensor state =
        at::zeros({value_.size(1), key_.size(-1), value_.size(-1)}, value_.options());
    const Scanned made = scan(state, /*keep=*/true);
    const at::Tensor gradient = tokens_.chunked(grad_output.to(value_.scalar_type())).flatten(1, 2);
    const Scanned back = scan_back(gradient);
    of_chunks(made, back, gradient, gradients);
  }

 private:
  // What scan() does, in reverse: the gradients of the states after each chunk, and of the written
  // values.
  Scanned scan_back(const at::Tensor& gradient) const {
    Scanned back = {
        .output = {},
        .states = at::empty({tokens_.count(), value_.size(1), key_.size(-1), value_.size(-1)},
                            value_.options()),
        .written = at::empty(value_.sizes(), value_.options())};
    if (cuda_scans(fused())) {
      cuda_scan_back(fused(), gradient, back.states, back.written);
      return back;
    }
    const at::Tensor reads = solved_.narrow(-1, value_.size(-1), key_.size(-1));
    back.states[tokens_.count() - 1].zero_();
    for (std::int64_t n = tokens_.count() - 1; n >= 0; --n) {
      const at::Tensor after = back.states[n];
      const at::Tensor written = at::bmm(scores_[n].mT(), gradient[n]).baddbmm_(leaves_[n], after);
      back.written[n].copy_(written);
      if (n == 0) continue;
      back.states[n - 1].copy_(after.mul(through_[n])
                                   .baddbmm_(asks_[n].mT(), gradient[n])
                                   .baddbmm_(reads[n].mT(), written, 1, -1));
    }
    return back;
  }

  void of_chunks(const Scanned& made, const Scanned& back, const at::Tensor& gradient,
                 const PartTensors& gradients) const {
    const at::Tensor grad_scores = product(gradient, made.written.mT()).tril_();
    const at::Tensor grad_solved =
        at::cat({back.written, product(back.written, made.states.mT()).neg_()}, -1);
    RowGradients of = {.wanted = solution(grad_solved, /*transposed=*/true),
                       .asks = product(gradient, made.states.mT()),
                       .leaves = product(made.written, back.states.mT()),
                       .query = {},
                       .key = {}};
    const at::Tensor grad_writes = product(of.wanted, solved_.mT()).neg_().tril_(-1);
    const at::Tensor grad_similar = scaled(grad_writes, rate_).mul_(between_);
    const at::Tensor grad_products = grad_scores.mul(between_);
    of.query = product(grad_products, key_);
    of.key = product(grad_similar.add(grad_similar.mT()), key_)
                 .add_(product(grad_products.mT(), query_));
    const AlongRows along = finish(of, gradients);

    const at::Tensor along_keys = along.keys.mul(from_begin_);
    const at::Tensor along_ends = along.leaves.mul(to_end_);
    const at::Tensor grad_rate = dot(grad_writes, similar_).add_(along.values).add_(along_keys);
    // Gradients of the sums of log decays.
    const at::Tensor pairs = grad_writes.mul(writes_).add_(grad_scores.mul(scores_));
    at::Tensor grad_sums = row_sums(pairs).sub_(at::sum(pairs, {-2}));
    grad_sums.addcmul_(along_keys, rate_).addcmul_(along.asks, from_begin_);
    grad_sums.sub_(along_ends);
    const at::Tensor passed = at::sum(made.states.mul(back.states), at::IntArrayRef({-2, -1}))
                                  .mul_(through_.squeeze(-1).squeeze(-1));
    grad_sums.select(-1, tokens_.chunk() - 1).add_(row_sums(along_ends)).add_(passed);
    gradients.decay.copy_(numbers(tokens_.sums_backward(grad_sums)));
    gradients.rate.copy_(numbers(grad_rate));
  }

  DeltaFactors factors() const { return {rate_, from_begin_, to_end_}; }

  // Sets the rows of queries, keys and values. Returns what is to be solved for.
  at::Tensor prepare() {
    PreparedRows made;
    if (cuda_prepares(part_)) {
      made = cuda_prepare(part_, factors());
    } else {
      const at::ScalarType wide = wide_of(part_.query);
      query_rows_.emplace(tokens_.chunked(part_.query.to(wide)));
      key_rows_.emplace(tokens_.chunked(part_.key.to(wide)));
      made.query = repeated(query_rows_->unit).mul(scale());
      made.key = repeated(key_rows_->unit);
      made.value = tokens_.chunked(part_.value.to(wide)).flatten(1, 2);
      made.wanted =
          at::cat({scaled(made.value, rate_), scaled(made.key, rate_.mul(from_begin_))}, -1);
      made.asks = scaled(made.query, from_begin_);
      made.leaves = scaled(made.key, to_end_);
    }
    query_ = std::move(made.query);
    key_ = std::move(made.key);
    value_ = std::move(made.value);
    asks_ = std::move(made.asks);
    leaves_ = std::move(made.leaves);
    return std::move(made.wanted);
  }

  // Writes the gradients of queries, keys and values.
  AlongRows finish(const RowGradients& of, const PartTensors& gradients) const {
    if (!query_rows_) return cuda_finish(part_, factors(), {query_, key_, value_}, of, gradients);
    const at::Tensor wanted_values = of.wanted.narrow(-1, 0, value_.size(-1));
    const at::Tensor wanted_keys = of.wanted.narrow(-1, value_.size(-1), key_.size(-1));
    of.query.add_(scaled(of.asks, from_begin_)).mul_(scale());
    of.key.add_(scaled(wanted_keys, rate_.mul(from_begin_))).add_(scaled(of.leaves, to_end_));
    const auto merged = [&](const UnitRows& rows, const at::Tensor& gradient) {
      return tokens_.merged(rows.input_gradient(summed(gradient)).flatten(1, 2));
    };
    gradients.query.copy_(merged(*query_rows_, of.query));
    gradients.key.copy_(merged(*key_rows_, of.key));
    gradients.value.copy_(tokens_.merged(scaled(wanted_values, rate_)));
    return {.values = dot(wanted_values, value_),
            .keys = dot(wanted_keys, key_),
            .asks = dot(of.asks, query_),
            .leaves = dot(of.leaves, key_)};
  }

  at::Tensor product(const at::Tensor& a, const at::Tensor& b) const {
    const Tf32Scope scope(in_tf32_);
    return at::matmul(a, b);
  }

  // Solves (I + writes) x = right, or the same with the transpose of I + writes.
  at::Tensor solution(const at::Tensor& right, bool transposed) const {
    if (inverse_.defined()) return product(transposed ? inverse_.mT() : inverse_, right);
    return at::linalg_solve_triangular(transposed ? writes_.mT() : writes_, right,
                                       /*upper=*/transposed, /*left=*/true,
                                       /*unitriangular=*/true);
  }

  DeltaScan fused() const { return {solved_, asks_, leaves_, scores_, through_, in_tf32_}; }
  at::Tensor numbers(const at::Tensor& of) const {
    return tokens_.merged(of.unsqueeze(-1)).squeeze(-1);
  }
  // [chunks, B, key heads, C, D] for all value heads, and the sums over the latter.
  at::Tensor repeated(const at::Tensor& of) const {
    const std::int64_t groups = part_.value.size(2) / part_.key.size(2);
    std::vector<std::int64_t> sizes = of.sizes().vec();
    sizes.insert(sizes.begin() + 3, groups);
    return of.unsqueeze(3).expand(sizes).flatten(1, 3).contiguous();
  }
  at::Tensor summed(const at::Tensor& of) const {
    const std::int64_t key_heads = part_.key.size(2);
    return at::sum(of.unflatten(1, {-1, key_heads, part_.value.size(2) / key_heads}), {3});
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(part_.key.size(3))); }

  const PartTensors& part_;
  const ChunkedTokens& tokens_;
  bool in_tf32_;
  std::optional<UnitRows> query_rows_;  // [chunks, B, key heads, C, D]; without a kernel
  std::optional<UnitRows> key_rows_;
  at::Tensor query_;
  at::Tensor key_;
  at::Tensor value_;
  at::Tensor rate_;
  at::Tensor between_;     // decays, [..., C, C]
  at::Tensor from_begin_;  // [..., C]
  at::Tensor to_end_;
  at::Tensor through_;  // of the whole chunk, [..., 1, 1]
  at::Tensor similar_;  // products of keys, strictly lower, decayed
  at::Tensor scores_;   // of queries with keys, lower, decayed
  at::Tensor writes_;
  at::Tensor inverse_;  // of I + writes; undefined without a kernel
  at::Tensor solved_;   // new_values, reads
  at::Tensor asks_;     // queries of the state before the chunk
  at::Tensor leaves_;   // keys of what is left at the chunk's end
};

// Calls visit(part) for each part of the heads.
template <typename Visit>
void for_each_part(const DeltaHeads& heads, std::int64_t rows, const Visit& visit) {
  const std::int64_t most = delta_part_heads(heads, rows);
  for (std::int64_t first = 0; first < heads.key_heads; first += most)
    visit(PartOf(heads, first, std::min(most, heads.key_heads - first)));
}

// `states` [B, value_heads, key_dim, value_dim]: undefined if they begin with zeros and are not
// wanted.
at::Tensor output_of(const DeltaInputs& inputs, const DeltaHeads& heads, const Documents* documents,
                     const at::Tensor& states) {
  const std::int64_t batch = inputs.qkv.size(0);
  const std::int64_t count = inputs.qkv.size(1);
  at::Tensor output = at::empty({batch, count, heads.value_width()}, inputs.qkv.options());
  const ChunkedTokens tokens(inputs.qkv, documents);
  for_each_part(heads, batch * count, [&](const PartOf& part) {
    const PartTensors of = part.inputs(inputs);
    const DeltaChunks chunks(of, tokens);
    const at::Tensor stored = states.defined() ? part.numbers(states, 1) : at::Tensor();
    at::Tensor state =
        stored.defined()
            ? stored.flatten(0, 1)
            : at::zeros({of.value.size(0) * of.value.size(2), heads.key_dim, heads.value_dim},
                        of.decay.options());
    part.values(output).copy_(tokens.merged(chunks.scan(state, /*keep=*/false).output));
    if (stored.defined()) stored.copy_(state.view_as(stored));
  });
  return output;
}

}  // namespace

at::Tensor gated_delta_rule(const DeltaInputs& inputs, const DeltaHeads& heads,
                            const Documents* documents) {
  return output_of(inputs, heads, documents, {});
}

at::Tensor gated_delta_rule_after(const at::Tensor& state, const DeltaInputs& inputs,
                                  const DeltaHeads& heads) {
  return output_of(inputs, heads, nullptr, state);
}

DeltaGradients gated_delta_rule_backward(const at::Tensor& grad_output, const DeltaInputs& inputs,
                                         const DeltaHeads& heads, const Documents* documents) {
  DeltaGradients gradients = {.qkv = at::empty(inputs.qkv.sizes(), inputs.qkv.options()),
                              .decay = at::empty(inputs.decay.sizes(), inputs.decay.options()),
                              .rate = at::empty(inputs.rate.sizes(), inputs.rate.options())};
  const ChunkedTokens tokens(inputs.qkv, documents);
  for_each_part(heads, inputs.qkv.size(0) * inputs.qkv.size(1), [&](const PartOf& part) {
    const PartTensors of = part.inputs(inputs);
    DeltaChunks(of, tokens).backward(part.values(grad_output), part.gradients(gradients));
  });
  return gradients;
}

at::Tensor delta_decay(const at::Tensor& a, const DecayParameters& parameters) {
  const at::ScalarType wide = wide_of(a);
  return at::softplus(a.to(wide).add(parameters.bias))
      .mul_(parameters.log_rate.to(wide).exp().neg_());
}

at::Tensor delta_decay_backward(const at::Tensor& gradient, const at::Tensor& decay,
                                const at::Tensor& a, const DecayParameters& parameters,
                                const DecayParameters& gradients) {
  const at::ScalarType wide = wide_of(a);
  const at::Tensor slope = at::sigmoid(a.to(wide).add(parameters.bias));
  at::Tensor of_a = gradient.mul(slope).mul_(parameters.log_rate.to(wide).exp().neg_());
  if (gradients.log_rate.defined())
    gradients.log_rate.add_(at::sum(gradient.mul(decay), at::IntArrayRef({0, 1})));
  if (gradients.bias.defined()) gradients.bias.add_(at::sum(of_a, at::IntArrayRef({0, 1})));
  return of_a;
}

}  // namespace sluice::engine
