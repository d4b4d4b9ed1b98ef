// The products of a Llama's block with its matrices [out, in], with what lies beside them: biases,
// adapters, and other matrices that are given the same input. Gradients go to whatever is trained:
// the views of what is not are undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/model/llama/llama_layout.h"
#include "engine/model/ops/adapter.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// Products of one input, their outputs side by side.
class ProductsPass {
 public:
  // What the adapters of a unit have in common: LoraRecipe::scale(), and the pass's dropout.
  struct Adapters {
    double scale = 0;
    Dropout dropout = {};
  };
  // All must outlive it.
  ProductsPass(const LlamaProducts& places, const UnitViews& parameters, const Adapters& adapters)
      : places_(places), w_(parameters), adapters_(adapters) {}

  at::Tensor output(const at::Tensor& input) const;

  // Of one backward pass, whose output's gradient it is; that has to stay as it is until put().
  class Backward {
   public:
    Backward(const ProductsPass& products, const at::Tensor& grad_output);

    at::Tensor input_gradient() const;
    // The gradients of all that is trained; `input` is forward's. `overwrite`: of products that a
    // first pass writes (PassContext::overwrites); biases are added to.
    void put(const UnitViews& gradients, const at::Tensor& input, bool overwrite) const;

   private:
    // The gradient of one part's output: where it is, and contiguous.
    at::Tensor columns(int part) const;
    at::Tensor of_part(int part) const;
    void put_weight(const at::Tensor& gradient, const at::Tensor& grad_output,
                    const at::Tensor& input, bool overwrite) const;
    void put_biases(const UnitViews& gradients) const;

    const ProductsPass& products_;
    const at::Tensor& grad_output_;
    std::vector<at::Tensor> inner_;  // by part: adapter_inner_gradient(), where it has an adapter
  };

 private:
  bool has_adapter(int part) const { return place(part) != kNoParameter; }
  int place(int part) const { return places_.adapters[static_cast<std::size_t>(part)]; }
  Adapter adapter(int part) const {
    return {.a = w_[place(part)],
            .b = w_[place(part) + 1],
            .scale = adapters_.scale,
            .dropout = numbered(adapters_.dropout, place(part))};
  }
  std::int64_t width(int part) const { return w_[places_.weight + part].size(0); }
  std::int64_t first_column(int part) const;
  at::Tensor base_output(const at::Tensor& input) const;

  const LlamaProducts& places_;
  const UnitViews& w_;
  const Adapters adapters_;
};

}  // namespace sluice::engine
