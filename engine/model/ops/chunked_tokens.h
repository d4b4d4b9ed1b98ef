// ChunkedTokens: how the tokens of sequences are cut into the chunks of a gated delta rule, and
// which tokens of a chunk belong to other documents. The last chunk is padded with zeros.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/model/delta_heads.h"
#include "engine/model/documents.h"

namespace sluice::engine {

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
    const std::int64_t padding = count_ * chunk_ - tokens_;
    const at::Tensor padded = padding == 0 ? of : at::constant_pad_nd(of, {0, 0, 0, 0, 0, padding});
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
  // A log decay: exp is 0.
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();

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

}  // namespace sluice::engine
