#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/model/ops/attention.h"
#include "engine/model/plain_attention_chunk.h"

namespace sluice::engine {

at::Tensor hidden_keys(const AttentionReach& reach, std::int64_t tokens, at::Device device) {
  const at::Tensor at = at::arange(tokens, at::TensorOptions().dtype(at::kLong).device(device));
  // The distance back to a key; negative: ahead.
  const at::Tensor distance = (at.unsqueeze(1) - at.unsqueeze(0)).unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (reach.window != 0) hidden.logical_or_(distance >= reach.window);
  if (reach.documents == nullptr) return hidden;
  return hidden.logical_or(distance > reach.documents->positions.unsqueeze(2));
}

namespace {

// All heads of a batch, as [B * heads, T, head_dim] in the dtype of the arithmetic.
class Plain {
 public:
  Plain(const HeadViews& heads, const PlainAttentionOptions& options)
      : dropout_(options.dropout),
        dtype_(at::toOpMathType(heads.query.scalar_type())),
        length_(heads.query.size(2)),
        scale_(options.scale.value_or(1 / std::sqrt(static_cast<double>(heads.query.size(3))))),
        soft_cap_(options.soft_cap),
        heads_(heads.query.size(1)),
        query_(flat(heads.query)),
        key_(flat(repeat_heads(heads.key, heads_))),
        value_(flat(repeat_heads(heads.value, heads_))),
        hidden_(hidden_keys(options.reach, length_, heads.query.device())) {
    if (options.sinks.defined())
      sinks_ = options.sinks.to(dtype_).repeat({heads.query.size(0)}).view({-1, 1, 1});
  }

  at::Tensor flat(const at::Tensor& heads) const {
    return heads.to(dtype_).reshape({-1, heads.size(2), heads.size(3)}).contiguous();
  }
  // An uninitialized tensor for results.
  at::Tensor like_flat() const { return at::empty_like(query_); }
  std::int64_t count() const { return query_.size(0); }
  std::int64_t length() const { return length_; }

  void forward(std::int64_t first, std::int64_t count, const at::Tensor& output) const {
    at::Tensor probabilities = softmax(first, count).probabilities;
    drop_in_place(probabilities, dropout_, position(first));
    at::Tensor out = output.narrow(0, first, count);
    at::bmm_out(out, probabilities, value_.narrow(0, first, count));
  }

  struct Gradients {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    at::Tensor sinks;  // [B * heads, 1, 1]; undefined: none
  };
  void backward(std::int64_t first, std::int64_t count, const at::Tensor& grad_output,
                const Gradients& gradients) const {
    const at::Tensor grad = grad_output.narrow(0, first, count);
    const auto [probabilities, of_sinks, slopes] = softmax(first, count);
    at::Tensor dropped = dropout_.active() ? probabilities.clone() : probabilities;
    drop_in_place(dropped, dropout_, position(first));
    at::Tensor grad_value = gradients.value.narrow(0, first, count);
    at::bmm_out(grad_value, dropped.transpose(1, 2), grad);
    at::Tensor grad_scores = at::bmm(grad, value_.narrow(0, first, count).transpose(1, 2));
    drop_in_place(grad_scores, dropout_, position(first));
    if (gradients.sinks.defined())
      gradients.sinks.narrow(0, first, count)
          .copy_(of_sinks.mul(grad_scores.mul(probabilities).sum({-1}, /*keepdim=*/true))
                     .sum({1}, /*keepdim=*/true)
                     .neg_());
    grad_scores = at::_softmax_backward_data(grad_scores, probabilities, -1, dtype_);
    if (slopes.defined()) grad_scores.mul_(slopes);
    grad_scores.mul_(scale_);
    at::Tensor grad_query = gradients.query.narrow(0, first, count);
    at::bmm_out(grad_query, grad_scores, key_.narrow(0, first, count));
    at::Tensor grad_key = gradients.key.narrow(0, first, count);
    at::bmm_out(grad_key, grad_scores.transpose(1, 2), query_.narrow(0, first, count));
  }

 private:
  struct Softmax {
    at::Tensor probabilities;
    at::Tensor of_sinks;  // [count, T, 1]: the probabilities that are dropped
    at::Tensor slopes;    // of the soft cap, [count, T, T]; undefined without one
  };
  Softmax softmax(std::int64_t first, std::int64_t count) const {
    at::Tensor scores =
        at::bmm(query_.narrow(0, first, count), key_.narrow(0, first, count).transpose(1, 2));
    scores.mul_(scale_);
    at::Tensor slopes;
    if (soft_cap_ > 0) {
      scores.div_(soft_cap_).tanh_();
      slopes = scores.square().neg_().add_(1);
      scores.mul_(soft_cap_);
    }
    scores.masked_fill_(hidden_from(first, count), -std::numeric_limits<double>::infinity());
    at::Tensor probabilities = at::_softmax(scores, -1, false);
    if (!sinks_.defined()) return {std::move(probabilities), {}, std::move(slopes)};
    const at::Tensor above =
        sinks_.narrow(0, first, count).sub(at::logsumexp(scores, {-1}, /*keepdim=*/true));
    probabilities.mul_(at::sigmoid(above.neg()));
    return {std::move(probabilities), at::sigmoid(above), std::move(slopes)};
  }
  // The mask of each head's sequence, or one for all sequences.
  at::Tensor hidden_from(std::int64_t first, std::int64_t count) const {
    if (hidden_.size(0) == 1) return hidden_;
    const at::Tensor head = at::arange(first, first + count, hidden_.options().dtype(at::kLong));
    return hidden_.index_select(0, head.floor_divide_(heads_));
  }
  std::uint64_t position(std::int64_t first) const {
    return static_cast<std::uint64_t>(first * length_ * length_);
  }

  Dropout dropout_;
  at::ScalarType dtype_;
  std::int64_t length_;
  double scale_;
  double soft_cap_;
  std::int64_t heads_;
  at::Tensor query_;
  at::Tensor key_;
  at::Tensor value_;
  at::Tensor hidden_;
  at::Tensor sinks_;  // [B * heads, 1, 1]; undefined: none
};

template <typename Visit>
void for_each_chunk(const Plain& plain, Visit visit) {
  const std::int64_t chunk = plain_attention_chunk(plain.length());
  for (std::int64_t first = 0; first < plain.count(); first += chunk) {
    visit(first, std::min(chunk, plain.count() - first));
  }
}

}  // namespace

at::Tensor plain_attention(const HeadViews& heads, const PlainAttentionOptions& options) {
  const Plain plain(heads, options);
  const at::Tensor output = plain.like_flat();
  for_each_chunk(
      plain, [&](std::int64_t first, std::int64_t count) { plain.forward(first, count, output); });
  return merge_heads(output.view(heads.query.sizes()).to(heads.query.scalar_type()));
}

void plain_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                              const PlainAttentionOptions& options, const HeadViews& gradients,
                              const at::Tensor& sink_gradient) {
  const Plain plain(heads, options);
  const at::Tensor grad_output = plain.flat(grad_heads);
  Plain::Gradients flat = {plain.like_flat(), plain.like_flat(), plain.like_flat(), {}};
  if (sink_gradient.defined()) flat.sinks = at::empty({plain.count(), 1, 1}, flat.query.options());
  for_each_chunk(plain, [&](std::int64_t first, std::int64_t count) {
    plain.backward(first, count, grad_output, flat);
  });
  const std::int64_t kv_heads = heads.key.size(1);
  gradients.query.copy_(flat.query.view(heads.query.sizes()));
  gradients.key.copy_(sum_groups(flat.key.view(heads.query.sizes()), kv_heads));
  gradients.value.copy_(sum_groups(flat.value.view(heads.query.sizes()), kv_heads));
  if (sink_gradient.defined())
    sink_gradient.add_(flat.sinks.view({-1, heads.query.size(1)}).sum(0));
}

}  // namespace sluice::engine
