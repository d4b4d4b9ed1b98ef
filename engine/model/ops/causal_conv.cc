#include "engine/model/ops/causal_conv.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "engine/model/fp32_pieces.h"
#include "engine/model/ops/delta_kernels.h"

namespace sluice::engine {
namespace {

// Some channels of a convolution, in the dtype that sums.
class Channels {
 public:
  Channels(const at::Tensor& input, const at::Tensor& weight, const Documents* documents)
      : input_(input.to(wide(input))),
        taps_(weight.flatten(1).t().to(wide(input)).contiguous()),
        documents_(documents),
        dtype_(input.scalar_type()) {}

  // Before the SiLU, rounded.
  at::Tensor sums() const {
    at::Tensor sum = input_.mul(tap(0));
    for (std::int64_t distance = 1; distance < reach(); ++distance)
      later(sum, distance).addcmul_(earlier(distance), tap(distance));
    return sum.to(dtype_);
  }

  // `gradient`: of sums(), wide.
  at::Tensor input_gradient(const at::Tensor& gradient) const {
    at::Tensor sum = gradient.mul(tap(0));
    for (std::int64_t distance = 1; distance < reach(); ++distance)
      sum.narrow(1, 0, tokens() - distance)
          .addcmul_(within(later(gradient, distance), distance), tap(distance));
    return sum;
  }

  // Adds to `weight_gradient`, [C, taps].
  void add_weight_gradient(const at::Tensor& gradient, const at::Tensor& weight_gradient) const {
    for (std::int64_t distance = 0; distance < reach(); ++distance)
      weight_gradient.select(1, taps_.size(0) - 1 - distance)
          .add_(at::sum(later(gradient, distance).mul(earlier(distance)), at::IntArrayRef({0, 1})));
  }

 private:
  static at::ScalarType wide(const at::Tensor& input) {
    return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }
  std::int64_t tokens() const { return input_.size(1); }
  std::int64_t reach() const { return std::min(taps_.size(0), tokens()); }
  at::Tensor tap(std::int64_t distance) const { return taps_[taps_.size(0) - 1 - distance]; }

  // The tokens that have one `distance` before them.
  at::Tensor later(const at::Tensor& of, std::int64_t distance) const {
    return of.narrow(1, distance, tokens() - distance);
  }
  // The ones before them, or 0 in another document.
  at::Tensor earlier(std::int64_t distance) const {
    return within(input_.narrow(1, 0, tokens() - distance), distance);
  }
  // `values` of pairs, by their later tokens, without pairs in two documents.
  at::Tensor within(const at::Tensor& values, std::int64_t distance) const {
    if (documents_ == nullptr || distance == 0) return values;
    return values.masked_fill(later(documents_->positions, distance).lt(distance).unsqueeze(-1), 0);
  }

  at::Tensor input_;  // [B, T, channels]
  at::Tensor taps_;   // [taps, channels]
  const Documents* documents_;
  at::ScalarType dtype_;
};

// Calls visit(first channel, channels).
template <typename Visit>
void for_each_piece(const at::Tensor& input, const Visit& visit) {
  const std::int64_t all = input.size(-1);
  const std::int64_t piece = fp32_piece_rows(input.size(0) * input.size(1));
  for (std::int64_t first = 0; first < all; first += piece)
    visit(first, std::min(piece, all - first));
}

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& input, const at::Tensor& weight,
                            const Documents* documents) {
  if (cuda_convolves(input, weight)) return fused_conv_silu(input, weight, documents);
  at::Tensor output = at::empty(input.sizes(), input.options());
  for_each_piece(input, [&](std::int64_t first, std::int64_t channels) {
    const Channels some(input.narrow(-1, first, channels), weight.narrow(0, first, channels),
                        documents);
    output.narrow(-1, first, channels).copy_(at::silu(some.sums()));
  });
  return output;
}

void causal_conv_silu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, const Documents* documents,
                               const at::Tensor& grad_input, const at::Tensor& weight_gradient) {
  if (cuda_convolves(input, weight) && cuda_convolves(grad_output, weight) &&
      cuda_convolves(grad_input, weight))
    return fused_conv_silu_backward(grad_output, input, weight, documents,
                                    {.input = grad_input, .weight = weight_gradient});
  for_each_piece(input, [&](std::int64_t first, std::int64_t channels) {
    const Channels some(input.narrow(-1, first, channels), weight.narrow(0, first, channels),
                        documents);
    const at::Tensor sums = some.sums();
    const at::ScalarType wide = sums.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor gradient =
        at::silu_backward(grad_output.narrow(-1, first, channels).to(wide), sums.to(wide));
    grad_input.narrow(-1, first, channels).copy_(some.input_gradient(gradient));
    if (weight_gradient.defined())
      some.add_weight_gradient(gradient, weight_gradient.flatten(1).narrow(0, first, channels));
  });
}

}  // namespace sluice::engine
