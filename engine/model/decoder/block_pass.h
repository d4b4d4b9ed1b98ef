// BlockPass: one call of a block, with what its branches share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/model/decoder/block_norm.h"
#include "engine/model/decoder/block_spec.h"
#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/decoder/products_pass.h"
#include "engine/model/model_unit.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/row_pieces.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// What it refers to must outlive it.
struct BlockPass {
  const BlockSpec& spec;
  const BlockParameters& places;
  const UnitViews& w;  // the parameters
  const PassContext& context;
  ProductsPass::Adapters adapters;
  RowPieces pieces;  // of the input's rows

  // `first_row`: of the input, if it is a piece of the micro-batch.
  ProductsPass products(const BlockProducts& of, std::int64_t first_row = 0) const {
    ProductsPass::Adapters here = adapters;
    here.first_row = first_row;
    return {of, w, here, {.order = order(), .fp8 = spec.fp8}};
  }
  WeightOrder order() const {
    return spec.stores_in_first ? WeightOrder::kInOut : WeightOrder::kOutIn;
  }
  BlockNorm norm(const NormPlaces& of) const {
    return {.kind = spec.norm, .epsilon = spec.epsilon, .places = of};
  }
  // Through the norm of what a branch adds. `input`: the norm's; `gradient` stays as it is.
  at::Tensor branch_norm_backward(std::size_t branch, const at::Tensor& gradient,
                                  const at::Tensor& input, at::Tensor rstd,
                                  const UnitViews& gradients) const {
    return norm(places.branch_norms[branch])
        .backward(w, gradients, gradient.clone(), input, {.rstd = std::move(rstd)},
                  /*residual=*/{});
  }
  Dropout residual_dropout(DropoutSite site) const {
    return dropout_at(context, site, spec.residual_dropout);
  }
};

// A gradient, or an undefined tensor if there is no such parameter.
inline at::Tensor gradient_of(const UnitViews& gradients, int place) {
  return place == kNoParameter ? at::Tensor() : gradients[place];
}

}  // namespace sluice::engine
