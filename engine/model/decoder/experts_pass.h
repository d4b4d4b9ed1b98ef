// The feed-forward of a decoder block with experts: a router, gated experts, their weighted sum,
// and its backward. Biases are added as products. The norm and the residual are the block's, and a
// shared expert is its FeedForwardPass's.
//
// A call computes all rows of a micro-batch, or one piece of them (row_pieces.h): rows do not
// depend on each other, so pieces are those of a dense feed-forward.
//
// Saved, in the activations' dtype: the router's logits, and the experts' products before the gate.
// Routing follows from the logits, and is recomputed from them.
//
// Memory:   beyond its arguments, backward takes the gathered gradients [R, hidden] and two tensors
//           [R, width]. Later it takes a tensor [R, hidden], and sums [T, hidden], without a fused
//           kernel also in fp32. Grouped gradients of matrices take memory of their own
//           (ops/experts.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/decoder/expert_adapters.h"
#include "engine/model/model_unit.h"
#include "engine/model/ops/experts.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

class ExpertsPass {
 public:
  // All must outlive it. `adapter_scale`: LoraRecipe::scale(), if the experts have adapters.
  ExpertsPass(const ExpertsSpec& spec, const BlockParameters& places, const UnitViews& parameters,
              double adapter_scale = 0);

  // T tokens, R = T * per_token rows in the order of experts.
  struct Middle {
    at::Tensor logits;       // [T, experts]
    at::Tensor gate_and_up;  // [R, 2 width]
    std::optional<Routing> routing = {};
    std::optional<ExpertRows> rows = {};
  };
  // `input`: [..., hidden].
  Middle middle(const at::Tensor& input) const;
  // Adds the middle's routing to what is defined of `to`.
  static void count(const Middle& middle, const RoutedTokens& to);
  // [T, hidden]. Frees gate_and_up, unless it was saved.
  at::Tensor output(Middle& middle) const;

  struct Backward {
    at::Tensor logits;       // saved
    at::Tensor gate_and_up;  // saved; overwritten
    const at::Tensor& input;
    const at::Tensor& grad_output;                 // [..., hidden]
    bool overwrite = false;                        // PassContext::overwrites, for the first piece
    const at::Tensor* balance_gradient = nullptr;  // PassContext::balance_gradient
  };
  // Returns the input's gradient, in its shape. Gradients of frozen parameters are undefined.
  at::Tensor backward(Backward pass, const UnitViews& gradients) const;

 private:
  RoutingRule rule() const;
  at::Tensor gated(const at::Tensor& gate_and_up) const;
  // Adds the biases' part to the weights' gradient, and the gradients of the biases to theirs.
  // `grad_tokens`: the output's. gate_and_up is its gradient.
  void biases_backward(const Backward& pass, const Routing& routing, const ExpertRows& rows,
                       at::Tensor& grad_weights, const UnitViews& gradients) const;
  ExpertMatrices matrices_in(const UnitViews& views) const;
  ExpertMatrices matrices_out(const UnitViews& views) const;
  // The gradient of the weights [T, k]; gate_and_up becomes its gradient.
  at::Tensor gated_backward(Backward& pass, const Routing& routing, const ExpertRows& rows,
                            const UnitViews& gradients) const;

  ExpertAdapters::Gradients adapter_gradients(const UnitViews& gradients, int first,
                                              bool overwrite) const;

  const ExpertsSpec& spec_;
  const BlockParameters& places_;
  const UnitViews& w_;
  std::optional<ExpertAdapters> adapters_in_;
  std::optional<ExpertAdapters> adapters_out_;
};

}  // namespace sluice::engine
