#include "engine/model/ops/gated_delta_rule.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {
namespace {

constexpr double kLengthEpsilon = 1e-6;                                // as in transformers
constexpr double kNothing = -std::numeric_limits<double>::infinity();  // a log decay: exp is 0

at::ScalarType wide_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor row_sums(const at::Tensor& of) { return at::sum(of, {-1}); }
at::Tensor dot(const at::Tensor& a, const at::Tensor& b) { return row_sums(a.mul(b)); }

// [..., C] times each row of [..., C, D].
at::Tensor scaled(const at::Tensor& rows, const at::Tensor& by) {
  return rows.mul(by.unsqueeze(-1));
}

// How tokens are cut into chunks, the last of which is padded with zeros, and which tokens of a
// chunk belong to other documents.
class ChunkedTokens {
 public:
  ChunkedTokens(const at::Tensor& packed, const Documents* documents)
      : batch_(packed.size(0)),
        tokens_(packed.size(1)),
        chunk_(std::min(kDeltaChunk, tokens_)),
        count_((tokens_ + chunk_ - 1) / chunk_) {
    if (documents == nullptr) return;
    const at::Tensor document = documents->positions.eq(0).cumsum(1);
    const at::Tensor by_chunk = chunked(document.view({batch_, tokens_, 1, 1})).squeeze(-1);
    const at::Tensor last = by_chunk.narrow(-1, chunk_ - 1, 1);
    other_ = by_chunk.unsqueeze(-1).ne(by_chunk.unsqueeze(-2));
    ends_ = by_chunk.ne(last);
    begun_ = at::ones(by_chunk.sizes(), ends_.options());
    begun_.narrow(0, 1, count_ - 1)
        .copy_(by_chunk.narrow(0, 1, count_ - 1).ne(last.narrow(0, 0, count_ - 1)));
  }

  std::int64_t count() const { return count_; }
  std::int64_t chunk() const { return chunk_; }

  // [B, T, heads, D] as [chunks, B, heads, C, D], contiguous.
  at::Tensor chunked(const at::Tensor& of) const {
    const at::Tensor padded = at::constant_pad_nd(of, {0, 0, 0, 0, 0, count_ * chunk_ - tokens_});
    return padded.unflatten(1, {count_, chunk_}).permute({1, 0, 3, 2, 4}).contiguous();
  }
  // [chunks, B * heads, C, D] back as [B, T, heads, D].
  at::Tensor merged(const at::Tensor& of) const {
    return of.unflatten(1, {batch_, -1})
        .permute({1, 0, 3, 2, 4})
        .flatten(1, 2)
        .narrow(1, 0, tokens_);
  }

  // Sums [chunks, B, heads, C] of a chunk's numbers in a token's document, up to the token.
  at::Tensor sums(const at::Tensor& of) const {
    return at::matmul(up_to(of), of.unsqueeze(-1)).squeeze(-1);
  }
  // `gradient`: of sums(), [chunks, B * heads, C].
  at::Tensor sums_backward(const at::Tensor& gradient) const {
    const at::Tensor by_row = gradient.unflatten(1, {batch_, -1});
    return at::matmul(up_to(by_row).mT(), by_row.unsqueeze(-1)).squeeze(-1).flatten(1, 2);
  }

  // Decays, from sums of their logarithms. They are 0 from one document to another. Between two
  // tokens of a chunk [..., C, C], from its begin to a token [..., C], and from there to its end.
  at::Tensor between(const at::Tensor& sums) const {
    const at::Tensor later = at::ones({chunk_, chunk_}, sums.options().dtype(at::kBool)).triu(1);
    at::Tensor made = sums.unsqueeze(-1).sub(sums.unsqueeze(-2)).masked_fill_(later, kNothing);
    return hide(made, other_).exp_();
  }
  at::Tensor from_begin(const at::Tensor& sums) const { return hide(sums.clone(), begun_).exp_(); }
  at::Tensor to_end(const at::Tensor& sums) const {
    return hide(sums.narrow(-1, chunk_ - 1, 1).sub(sums), ends_).exp_();
  }

 private:
  static at::Tensor hide(const at::Tensor& of, const at::Tensor& hidden) {
    return hidden.defined() ? of.masked_fill_(hidden, kNothing) : of;
  }

  at::Tensor up_to(const at::Tensor& like) const {
    const at::Tensor ones = at::ones({chunk_, chunk_}, like.options()).tril_();
    return other_.defined() ? ones.masked_fill(other_, 0) : ones;
  }

  std::int64_t batch_;
  std::int64_t tokens_;
  std::int64_t chunk_;
  std::int64_t count_;
  at::Tensor other_;  // [chunks, B, 1, C, C]: in different documents
  at::Tensor ends_;   // [chunks, B, 1, C]: another document than the chunk's last token
  at::Tensor begun_;  // another than the last token of the chunk before
};

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

// Some key heads with their value heads.
struct PartInputs {
  at::Tensor query;  // [B, T, key heads, D], wide
  at::Tensor key;
  at::Tensor value;
  at::Tensor decay;  // [B, T, value heads]
  at::Tensor rate;
};

// The columns of a part, [B, T, heads, D].
class PartOf {
 public:
  PartOf(const DeltaHeads& heads, std::int64_t first, std::int64_t count)
      : heads_(heads), first_(first), count_(count) {}

  at::Tensor query(const at::Tensor& qkv) const { return keys(qkv, 0); }
  at::Tensor key(const at::Tensor& qkv) const { return keys(qkv, heads_.key_width()); }
  at::Tensor value(const at::Tensor& qkv) const {
    return values(qkv.narrow(-1, 2 * heads_.key_width(), heads_.value_width()));
  }
  // `of`: [B, T, value_width()].
  at::Tensor values(const at::Tensor& of) const {
    return of.unflatten(-1, {heads_.value_heads, heads_.value_dim})
        .narrow(2, first_ * heads_.groups(), count_ * heads_.groups());
  }
  // The part of a tensor whose dimension `dim` has the value heads.
  at::Tensor numbers(const at::Tensor& of, std::int64_t dim) const {
    return of.narrow(dim, first_ * heads_.groups(), count_ * heads_.groups());
  }
  PartInputs inputs(const DeltaInputs& of) const {
    const at::ScalarType wide = wide_of(of.qkv);
    return {.query = query(of.qkv).to(wide),
            .key = key(of.qkv).to(wide),
            .value = value(of.qkv).to(wide),
            .decay = numbers(of.decay, 2),
            .rate = numbers(of.rate, 2)};
  }

 private:
  at::Tensor keys(const at::Tensor& qkv, std::int64_t from) const {
    return qkv.narrow(-1, from, heads_.key_width())
        .unflatten(-1, {heads_.key_heads, heads_.key_dim})
        .narrow(2, first_, count_);
  }

  const DeltaHeads& heads_;
  std::int64_t first_;
  std::int64_t count_;
};

// The chunks of a part's heads, each tensor [chunks, B * value heads, ...]. In a chunk the values
// that are written are new_values - reads S, with the state S before it: solutions of
// (I + writes) [new_values, reads] = [rate v, rate from_begin k].
class DeltaChunks {
 public:
  DeltaChunks(const PartInputs& part, const ChunkedTokens& tokens)
      : tokens_(tokens),
        heads_(part.decay.size(2)),
        key_heads_(part.key.size(2)),
        scale_(1 / std::sqrt(static_cast<double>(part.key.size(3)))),
        query_rows_(tokens.chunked(part.query)),
        key_rows_(tokens.chunked(part.key)) {
    query_ = repeated(query_rows_.unit).mul(scale_);
    key_ = repeated(key_rows_.unit);
    value_ = tokens.chunked(part.value).flatten(1, 2);
    const at::Tensor rate = tokens.chunked(part.rate.unsqueeze(-1)).squeeze(-1);
    const at::Tensor decay = tokens.chunked(part.decay.unsqueeze(-1)).squeeze(-1);
    const at::Tensor sums = tokens.sums(decay);
    rate_ = rate.flatten(1, 2);
    between_ = tokens.between(sums).flatten(1, 2);
    from_begin_ = tokens.from_begin(sums).flatten(1, 2);
    to_end_ = tokens.to_end(sums).flatten(1, 2);
    through_ = from_begin_.narrow(-1, tokens.chunk() - 1, 1).contiguous().unsqueeze(-1);
    similar_ = at::matmul(key_, key_.mT()).mul_(between_).tril_(-1);
    scores_ = at::matmul(query_, key_.mT()).mul_(between_);
    writes_ = scaled(similar_, rate_);
    const at::Tensor wanted =
        at::cat({scaled(value_, rate_), scaled(key_, rate_.mul(from_begin_))}, -1);
    solved_ = at::linalg_solve_triangular(writes_, wanted, /*upper=*/false, /*left=*/true,
                                          /*unitriangular=*/true)
                  .contiguous();
    asks_ = scaled(query_, from_begin_);
    leaves_ = scaled(key_, to_end_);
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

  struct Gradients {
    at::Tensor query;  // [B, T, key heads, D]
    at::Tensor key;
    at::Tensor value;
    at::Tensor decay;  // [B, T, value heads]
    at::Tensor rate;
  };
  Gradients backward(const at::Tensor& grad_output) const {
    at::Tensor state =
        at::zeros({value_.size(1), key_.size(-1), value_.size(-1)}, value_.options());
    const Scanned made = scan(state, /*keep=*/true);
    const at::Tensor gradient = tokens_.chunked(grad_output).flatten(1, 2);
    const Scanned back = scan_back(gradient);
    return of_chunks(made, back, gradient);
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

  Gradients of_chunks(const Scanned& made, const Scanned& back, const at::Tensor& gradient) const {
    const at::Tensor grad_scores = at::matmul(gradient, made.written.mT()).tril_();
    const at::Tensor grad_asks = at::matmul(gradient, made.states.mT());
    const at::Tensor grad_leaves = at::matmul(made.written, back.states.mT());
    const at::Tensor grad_solved =
        at::cat({back.written, at::matmul(back.written, made.states.mT()).neg_()}, -1);
    const at::Tensor wanted = at::linalg_solve_triangular(writes_.mT(), grad_solved, /*upper=*/true,
                                                          /*left=*/true, /*unitriangular=*/true);
    const at::Tensor grad_writes = at::matmul(wanted, solved_.mT()).neg_().tril_(-1);
    const at::Tensor wanted_values = wanted.narrow(-1, 0, value_.size(-1));
    const at::Tensor wanted_keys = wanted.narrow(-1, value_.size(-1), key_.size(-1));

    const at::Tensor along_keys = dot(wanted_keys, key_).mul_(from_begin_);
    const at::Tensor along_ends = dot(grad_leaves, key_).mul_(to_end_);
    const at::Tensor grad_rate =
        dot(grad_writes, similar_).add_(dot(wanted_values, value_)).add_(along_keys);

    // Gradients of the sums of log decays.
    const at::Tensor pairs = grad_writes.mul(writes_).add_(grad_scores.mul(scores_));
    at::Tensor grad_sums = row_sums(pairs).sub_(at::sum(pairs, {-2}));
    grad_sums.addcmul_(along_keys, rate_).addcmul_(dot(grad_asks, query_), from_begin_);
    grad_sums.sub_(along_ends);
    const at::Tensor passed = at::sum(made.states.mul(back.states), at::IntArrayRef({-2, -1}))
                                  .mul_(through_.squeeze(-1).squeeze(-1));
    grad_sums.select(-1, tokens_.chunk() - 1).add_(row_sums(along_ends)).add_(passed);

    const at::Tensor grad_similar = scaled(grad_writes, rate_).mul_(between_);
    const at::Tensor grad_products = grad_scores.mul(between_);
    const at::Tensor grad_query =
        at::matmul(grad_products, key_).add_(scaled(grad_asks, from_begin_)).mul_(scale_);
    const at::Tensor grad_key = at::matmul(grad_similar.add(grad_similar.mT()), key_)
                                    .add_(at::matmul(grad_products.mT(), query_))
                                    .add_(scaled(wanted_keys, rate_.mul(from_begin_)))
                                    .add_(scaled(grad_leaves, to_end_));
    return {.query = tokens_.merged(query_rows_.input_gradient(summed(grad_query)).flatten(1, 2)),
            .key = tokens_.merged(key_rows_.input_gradient(summed(grad_key)).flatten(1, 2)),
            .value = tokens_.merged(scaled(wanted_values, rate_)),
            .decay = numbers(tokens_.sums_backward(grad_sums)),
            .rate = numbers(grad_rate)};
  }

  DeltaScan fused() const { return {solved_, asks_, leaves_, scores_, through_}; }
  at::Tensor numbers(const at::Tensor& of) const {
    return tokens_.merged(of.unsqueeze(-1)).squeeze(-1);
  }
  // [chunks, B, key heads, C, D] for all value heads, and the sums over the latter.
  at::Tensor repeated(const at::Tensor& of) const {
    const std::int64_t groups = heads_ / key_heads_;
    std::vector<std::int64_t> sizes = of.sizes().vec();
    sizes.insert(sizes.begin() + 3, groups);
    return of.unsqueeze(3).expand(sizes).flatten(1, 3).contiguous();
  }
  at::Tensor summed(const at::Tensor& of) const {
    return at::sum(of.unflatten(1, {-1, key_heads_, heads_ / key_heads_}), {3});
  }

  const ChunkedTokens& tokens_;
  std::int64_t heads_;
  std::int64_t key_heads_;
  double scale_;
  UnitRows query_rows_;  // [chunks, B, key heads, C, D]
  UnitRows key_rows_;
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
  at::Tensor solved_;  // new_values, reads
  at::Tensor asks_;    // queries of the state before the chunk
  at::Tensor leaves_;  // keys of what is left at the chunk's end
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
    const PartInputs of = part.inputs(inputs);
    const DeltaChunks chunks(of, tokens);
    const at::Tensor stored = states.defined() ? part.numbers(states, 1) : at::Tensor();
    at::Tensor state =
        stored.defined()
            ? stored.flatten(0, 1)
            : at::zeros({of.value.size(0) * of.value.size(2), heads.key_dim, heads.value_dim},
                        of.value.options());
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
  const at::ScalarType wide = wide_of(inputs.qkv);
  DeltaGradients gradients = {.qkv = at::empty(inputs.qkv.sizes(), inputs.qkv.options()),
                              .decay = at::empty(inputs.decay.sizes(), inputs.decay.options()),
                              .rate = at::empty(inputs.rate.sizes(), inputs.rate.options())};
  const ChunkedTokens tokens(inputs.qkv, documents);
  for_each_part(heads, inputs.qkv.size(0) * inputs.qkv.size(1), [&](const PartOf& part) {
    const DeltaChunks chunks(part.inputs(inputs), tokens);
    const auto made = chunks.backward(part.values(grad_output).to(wide));
    part.query(gradients.qkv).copy_(made.query);
    part.key(gradients.qkv).copy_(made.key);
    part.value(gradients.qkv).copy_(made.value);
    part.numbers(gradients.decay, 2).copy_(made.decay);
    part.numbers(gradients.rate, 2).copy_(made.rate);
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
