#include "engine/model/ops/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/rms_norm.h"

namespace sluice::engine {
namespace {

at::ScalarType wide_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The rotations of the tokens' pairs: [B or 1, T, 1, pairs].
struct Turns {
  at::Tensor cosine;
  at::Tensor sine;
};

Turns turns_of(const at::Tensor& packed, const Rotary& rotary) {
  const at::Tensor frequencies =
      rotary.of_rows.defined()
          ? rotary.of_rows.view({packed.size(0), packed.size(1), -1})
          : at::tensor(rotary.frequencies.of_pair, at::kFloat).to(packed.device());
  const RotaryStart& place = rotary.place;
  const at::Tensor positions =
      place.documents != nullptr
          ? place.documents->positions
          : at::arange(place.first, place.first + packed.size(1),
                       at::TensorOptions().dtype(at::kLong).device(packed.device()))
                .unsqueeze(0);
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(2).mul(frequencies);
  const auto made = [&](const at::Tensor& of_angles) {
    return of_angles.mul(rotary.frequencies.scale).to(wide_of(packed)).unsqueeze(2);
  };
  return {made(at::cos(angles)), made(at::sin(angles))};
}

enum class Way : std::uint8_t { kForward, kBack };

// [B, T, n, head_dim], in place.
void turn(const at::Tensor& heads, const Turns& turns, Way way) {
  const std::int64_t pairs = turns.cosine.size(-1);
  const at::Tensor low = heads.narrow(-1, 0, pairs);
  const at::Tensor high = heads.narrow(-1, pairs, pairs);
  const at::ScalarType wide = wide_of(heads);
  const at::Tensor x = low.to(wide);
  const at::Tensor y = high.to(wide);
  const at::Tensor sine = way == Way::kForward ? turns.sine : turns.sine.neg();
  const at::Tensor turned_low = x.mul(turns.cosine).sub_(y.mul(sine));
  high.copy_(y.mul(turns.cosine).add_(x.mul(sine)));
  low.copy_(turned_low);
}

at::Tensor queries_of(const at::Tensor& packed, const HeadShape& heads) {
  return packed.narrow(-1, 0, heads.query_width()).unflatten(-1, {heads.heads, heads.head_dim});
}
at::Tensor keys_of(const at::Tensor& packed, const HeadShape& heads) {
  return packed.narrow(-1, heads.query_width(), heads.key_width())
      .unflatten(-1, {heads.kv_heads, heads.head_dim});
}
at::Tensor both_of(const at::Tensor& packed, const HeadShape& heads) {
  return packed.narrow(-1, 0, heads.query_width() + heads.key_width())
      .unflatten(-1, {heads.heads + heads.kv_heads, heads.head_dim});
}

void turn_packed(at::Tensor& packed, const Rotary& rotary, Way way) {
  if (cuda_rotates(packed, rotary)) {
    if (way == Way::kForward)
      fused_rotate(packed, packed, nullptr, rotary);
    else
      fused_rotate_backward(packed, nullptr, nullptr, nullptr, rotary);
    return;
  }
  turn(both_of(packed, rotary.heads), turns_of(packed, rotary), way);
}

// In place, for one part's heads: `gradient` is that of the norm's output.
void norm_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                   const at::Tensor& weight_gradient, double epsilon) {
  const at::Tensor rstd = rms_norm(input, weight, epsilon).rstd;
  gradient.copy_(
      rms_norm_backward(gradient.contiguous(), input, rstd, weight, weight_gradient, {}));
}

}  // namespace

void rotate(at::Tensor& packed, const Rotary& rotary) {
  turn_packed(packed, rotary, Way::kForward);
}

void rotate_backward(at::Tensor& gradient, const Rotary& rotary) {
  turn_packed(gradient, rotary, Way::kBack);
}

at::Tensor norm_and_rotate(const at::Tensor& packed, const HeadNorms& norms, const Rotary& rotary) {
  const HeadShape& heads = rotary.heads;
  if (cuda_rotates_normed(packed, rotary)) {
    std::vector<std::int64_t> sizes = packed.sizes().vec();
    sizes.back() = heads.query_width() + heads.key_width();
    at::Tensor turned = at::empty(sizes, packed.options());
    fused_rotate(packed, turned, &norms, rotary);
    return turned;
  }
  const at::Tensor query =
      rms_norm(queries_of(packed, heads), norms.weights.query, norms.epsilon).output;
  const at::Tensor key = rms_norm(keys_of(packed, heads), norms.weights.key, norms.epsilon).output;
  const at::Tensor both = at::cat({query, key}, 2);
  turn(both, turns_of(packed, rotary), Way::kForward);
  return both.flatten(2);
}

void norm_and_rotate_backward(at::Tensor& gradient, const at::Tensor& packed,
                              const HeadNorms& norms, const HeadNormWeights& gradients,
                              const Rotary& rotary) {
  const HeadShape& heads = rotary.heads;
  if (cuda_rotates_normed(packed, rotary) && cuda_rotates_normed(gradient, rotary)) {
    if (gradients.query.defined())
      return fused_rotate_backward(gradient, &packed, &norms, &gradients, rotary);
    // The kernel always sums the weights' gradients, wanted or not.
    const auto fp32 = packed.options().dtype(at::kFloat);
    const at::Tensor query = at::zeros({heads.head_dim}, fp32);
    const at::Tensor key = at::zeros({heads.head_dim}, fp32);
    const HeadNormWeights unwanted = {query, key};
    return fused_rotate_backward(gradient, &packed, &norms, &unwanted, rotary);
  }
  turn(both_of(gradient, heads), turns_of(packed, rotary), Way::kBack);
  norm_backward(queries_of(gradient, heads), queries_of(packed, heads), norms.weights.query,
                gradients.query, norms.epsilon);
  norm_backward(keys_of(gradient, heads), keys_of(packed, heads), norms.weights.key, gradients.key,
                norms.epsilon);
}

}  // namespace sluice::engine
