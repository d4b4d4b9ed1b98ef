// The norms of a decoder, of either kind: layer_norm.h or rms_norm.h on a unit's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// What an RMSNorm multiplies by: the gain itself, or 1 + gain in fp32 (float64 for float64).
at::Tensor rms_factor(NormKind kind, const at::Tensor& gain);

struct BlockNorm {
  NormKind kind;
  double epsilon;
  NormPlaces places;

  // An RMSNorm has no mean.
  Normed normed(const UnitViews& w, const at::Tensor& input) const;
  // Replaces `branch` by the residual stream, its own dropout plus `residual`, and returns its
  // norm.
  Normed add_and_norm(const UnitViews& w, at::Tensor& branch, const at::Tensor& residual,
                      const Dropout& dropout) const;
  // See layer_norm_backward(). `statistics`: without the output. Gradients of frozen parameters are
  // undefined.
  at::Tensor backward(const UnitViews& w, const UnitViews& gradients, at::Tensor grad_output,
                      const at::Tensor& input, const Normed& statistics,
                      const at::Tensor& residual) const;
};

}  // namespace sluice::engine
