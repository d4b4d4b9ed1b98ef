#include "engine/model/decoder/block_norm.h"

#include <utility>

#include "engine/model/ops/rms_norm.h"

namespace sluice::engine {
namespace {

Normed without_mean(RmsNormed normed) {
  return {std::move(normed.output), {}, std::move(normed.rstd)};
}

}  // namespace

at::Tensor rms_factor(NormKind kind, const at::Tensor& gain) {
  if (kind == NormKind::kRms) return gain;
  const at::Tensor wide = gain.to(gain.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return kind == NormKind::kRmsFromOne ? wide.add(1) : wide;
}

Normed BlockNorm::normed(const UnitViews& w, const at::Tensor& input) const {
  if (kind != NormKind::kLayer)
    return without_mean(rms_norm(input, rms_factor(kind, w[places.gain]), epsilon));
  return layer_norm(input, w[places.gain], w[places.bias], epsilon);
}

Normed BlockNorm::add_and_norm(const UnitViews& w, at::Tensor& branch, const at::Tensor& residual,
                               const Dropout& dropout) const {
  if (kind != NormKind::kLayer)
    return without_mean(
        add_and_rms_norm(branch, residual, dropout, rms_factor(kind, w[places.gain]), epsilon));
  return engine::add_and_norm(branch, residual, dropout, w[places.gain], w[places.bias], epsilon);
}

at::Tensor BlockNorm::backward(const UnitViews& w, const UnitViews& gradients,
                               at::Tensor grad_output, const at::Tensor& input,
                               const Normed& statistics, const at::Tensor& residual) const {
  if (kind != NormKind::kLayer)
    return rms_norm_backward(std::move(grad_output), input, statistics.rstd,
                             rms_factor(kind, w[places.gain]), gradients[places.gain], residual);
  return layer_norm_backward(std::move(grad_output), input, statistics, w[places.gain],
                             w[places.bias], {gradients[places.gain], gradients[places.bias]},
                             residual);
}

}  // namespace sluice::engine
