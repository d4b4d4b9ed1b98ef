// The products of a block with its matrices, including biases, adapters, and other matrices with
// the same input. Only trained parameters get gradients: the gradient views of others are
// undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/ops/fp8_products.h"
#include "engine/model/ops/linear.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// Products of one input; their outputs are concatenated.
class ProductsPass {
 public:
  // Shared by the adapters of a unit: LoraRecipe::scale(), and the pass's dropout.
  struct Adapters {
    double scale = 0;
    Dropout dropout = {};
    std::int64_t first_row = 0;  // the input's, if it is a piece of the micro-batch
  };
  struct Numbers {
    WeightOrder order = WeightOrder::kOutIn;
    Fp8Recipe fp8 = {};
  };
  // The first two must outlive it.
  ProductsPass(const BlockProducts& indices, const UnitViews& parameters, const Adapters& adapters,
               const Numbers& numbers)
      : indices_(indices),
        w_(parameters),
        adapters_(adapters),
        order_(numbers.order),
        fp8_(numbers.fp8) {}

  at::Tensor output(const at::Tensor& input) const;

  // One backward pass. `grad_output` must stay unchanged until all gradients are put.
  class Backward {
   public:
    Backward(const ProductsPass& products, const at::Tensor& grad_output);

    at::Tensor input_gradient() const;
    // Computes the gradients of trained matrices and adapters; `input` is forward's. `overwrite`:
    // writes the products of a first pass (PassContext::overwrites).
    void put_matrices(const UnitViews& gradients, const at::Tensor& input, bool overwrite) const;
    // Adds to the gradients of biases.
    void put_biases(const UnitViews& gradients) const;

   private:
    // The gradient of one part's output: in place, and contiguous.
    at::Tensor columns(int part) const;
    at::Tensor of_part(int part) const;
    void put_weight(const at::Tensor& gradient, const at::Tensor& grad_output,
                    const at::Tensor& input, bool overwrite) const;

    const ProductsPass& products_;
    const at::Tensor& grad_output_;
    std::vector<at::Tensor> inner_;  // by part: adapter_inner_gradient(), if it has an adapter
    std::optional<Fp8Backward> fp8_;
  };

 private:
  bool has_adapter(int part) const { return place(part) != kNoParameter; }
  int place(int part) const { return indices_.adapters[static_cast<std::size_t>(part)]; }
  Adapter adapter(int part) const {
    const at::Tensor& a = w_[place(part)];
    Dropout dropout = numbered(adapters_.dropout, place(part));
    dropout.first_position = static_cast<std::uint64_t>(adapters_.first_row * a.size(1));
    return {.a = a, .b = w_[place(part) + 1], .scale = adapters_.scale, .dropout = dropout};
  }
  std::int64_t width(int part) const {
    return w_[indices_.weight + part].size(order_ == WeightOrder::kOutIn ? 0 : 1);
  }
  Fp8Weight fp8_weight(const at::Tensor& weight) const {
    return {.numbers = weight, .in_first = order_ == WeightOrder::kInOut};
  }
  std::int64_t first_column(int part) const;
  std::optional<at::Tensor> joined_weight() const;
  // The joined weight, if its products are computed in fp8.
  std::optional<at::Tensor> weight_for_fp8() const;
  at::Tensor fp8_output(const at::Tensor& input, const at::Tensor& weight) const;
  at::Tensor base_output(const at::Tensor& input) const;

  const BlockProducts& indices_;
  const UnitViews& w_;
  const Adapters adapters_;
  const WeightOrder order_;
  const Fp8Recipe fp8_;
};

}  // namespace sluice::engine
