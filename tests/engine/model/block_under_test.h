// A single block with its parameters and gradients in memory, for tests. Its feed-forward can be
// cut into smaller pieces than a model's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "engine/model/decoder/decoder_block.h"
#include "engine/model/model_unit.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {

class BlockUnderTest {
 public:
  // `shape`: with all numbers of its family. 0: pieces as in a model.
  BlockUnderTest(const ModelShape& shape, const LoraRecipe& lora, std::int64_t piece_rows,
                 const at::TensorOptions& options, std::int64_t layer = 0, Fp8Recipe fp8 = {})
      : block_(make(shape, lora, piece_rows, layer, fp8)), options_(options) {
    const UnitLayout& layout = block_->layout();
    base_ = zeros(layout, options);
    parameters_ = UnitViews(layout, base_);
    trained_ = layout;
    if (lora.exists()) {
      trained_ = adapter_layout(spec_of(shape).block_at(layer), lora, layer);
      adapters_ = zeros(trained_, options);
      parameters_ = with_adapters(parameters_, UnitViews(trained_, adapters_));
      for (std::size_t i = 0; i < layout.parameters.size(); ++i) gradients_.append({});
    }
    const bool is_double = options.dtype() == at::kDouble;
    gradient_ = zeros(trained_, options.dtype(is_double ? at::kDouble : at::kFloat));
    const UnitViews own(trained_, gradient_);
    for (int i = 0; i < own.size(); ++i) gradients_.append(own[i]);
  }

  const ModelUnit& block() const { return *block_; }
  const UnitViews& parameters() const { return parameters_; }
  const UnitViews& gradients() const { return gradients_; }
  const at::Tensor& flat_gradient() const { return gradient_; }
  const at::TensorOptions& options() const { return options_; }

  // The same values for all blocks of a shape and type.
  void make_lively() const {
    at::manual_seed(7);
    base_.copy_(at::randn({base_.numel()}).mul_(0.2));
    if (adapters_.defined()) adapters_.copy_(at::randn({adapters_.numel()}).mul_(0.2));
  }
  void fill_products(double value) const {
    for (const ParameterSpec& parameter : trained_.parameters)
      if (parameter.gradient_is_product)
        gradient_
            .narrow(0, static_cast<std::int64_t>(parameter.first_element),
                    static_cast<std::int64_t>(parameter.elements))
            .fill_(value);
  }

  struct Result {
    at::Tensor output;
    at::Tensor grad_input;
  };
  Result forward_backward(const PassContext& context, const at::Tensor& input,
                          const at::Tensor& grad_output, bool recompute) const {
    Saved saved;
    Result result;
    result.output = block_->forward(context, parameters_, input, recompute ? nullptr : &saved);
    if (recompute) block_->recompute(context, parameters_, input, saved);
    result.grad_input =
        block_->backward(context, parameters_, input, saved, grad_output, gradients_);
    return result;
  }

 private:
  static std::unique_ptr<const ModelUnit> make(const ModelShape& shape, const LoraRecipe& lora,
                                               std::int64_t piece_rows, std::int64_t layer,
                                               Fp8Recipe fp8) {
    BlockSpec spec = with_fp8(spec_of(shape), {.lora = lora, .fp8 = fp8}).block_at(layer);
    if (piece_rows != 0) spec.piece_rows = piece_rows;
    return std::make_unique<DecoderBlock>(spec, lora, layer);
  }
  static at::Tensor zeros(const UnitLayout& layout, const at::TensorOptions& options) {
    return at::zeros({static_cast<std::int64_t>(layout.slot_elements)}, options);
  }

  std::unique_ptr<const ModelUnit> block_;
  at::TensorOptions options_;
  UnitLayout trained_;
  at::Tensor base_;
  at::Tensor adapters_;
  at::Tensor gradient_;
  UnitViews parameters_;
  UnitViews gradients_;
};

}  // namespace sluice::engine
