// ExpertAdapters: low-rank adapters of one matrix of all experts, in PEFT's form for a tensor that
// has every expert (LoraConfig.target_parameters).
//
// Shapes:   E experts, rank r; R rows in the order of experts (ops/experts.h). A [r E, in] has the
//           experts' A one after another. B is [out, r E]: its column k E + e is column k of expert
//           e's B. Rows of B that alternate between two joined products are put apart here.
// Dropout:  none: a tensor's adapter has no input of its own in PEFT.
// Memory:   a copy of B in another order, and with gradients one of B's in their dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/ops/experts.h"

namespace sluice::engine {

class ExpertAdapters {
 public:
  struct Form {
    std::int64_t experts = 1;
    double scale = 1;      // LoraRecipe::scale()
    bool in_turn = false;  // rows of B alternate between gate and up
  };
  ExpertAdapters(const at::Tensor& a, const at::Tensor& b, const Form& form);

  // Adds scale * (rows A^T) B^T, each row with its expert's, to `output` [R, out].
  void add_to(const at::Tensor& output, const at::Tensor& rows, const ExpertRows& groups) const;
  // scale * grad_output B: [R, r].
  at::Tensor inner_gradient(const at::Tensor& grad_output, const ExpertRows& groups) const;
  // Adds inner A to `grad_rows` [R, in].
  void add_input_gradient(const at::Tensor& grad_rows, const at::Tensor& inner,
                          const ExpertRows& groups) const;

  struct Gradients {
    const at::Tensor& a;
    const at::Tensor& b;
    bool overwrite = false;  // instead of adding to them
  };
  // `rows`: add_to()'s. `inner` and `grad_output`: inner_gradient()'s. A row's factor may be in
  // `rows` instead of in these.
  void put_gradients(const Gradients& to, const at::Tensor& inner, const at::Tensor& grad_output,
                     const at::Tensor& rows, const ExpertRows& groups) const;

 private:
  at::Tensor inner(const at::Tensor& rows, const ExpertRows& groups) const;

  const Form form_;
  ExpertMatrices a_;  // [r, in]
  ExpertMatrices b_;  // [out, r]
};

}  // namespace sluice::engine
