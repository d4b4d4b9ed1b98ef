// Parts of a gated delta rule's heads, which are computed one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/delta_heads.h"
#include "engine/model/ops/gated_delta_rule.h"

namespace sluice::engine {

// Views of some key heads with their value heads: inputs, or their gradients.
struct PartTensors {
  at::Tensor query;  // [B, T, key heads, D]
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
  PartTensors inputs(const DeltaInputs& of) const {
    return {.query = query(of.qkv),
            .key = key(of.qkv),
            .value = value(of.qkv),
            .decay = numbers(of.decay, 2),
            .rate = numbers(of.rate, 2)};
  }
  PartTensors gradients(const DeltaGradients& of) const {
    return inputs({.qkv = of.qkv, .decay = of.decay, .rate = of.rate});
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

}  // namespace sluice::engine
