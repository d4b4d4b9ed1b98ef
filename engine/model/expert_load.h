// ExpertLoad: how the tokens of a step are shared among the experts of a model's layers. The
// balance loss follows from it: transformers' load_balancing_loss_func(), equations 4 to 6 in
// "Switch Transformers" (2021).
//
//   load.begin_step();
//   load.begin_wave();                                         for each wave
//     context.routed = load.counted(unit, m);                  forward of each unit
//     load.end_forward(micro_batches, tokens, scale);
//     context.balance_gradient = load.gradient(unit, m);       backward of each unit
//   load.rows(), load.balance_losses()                         after the last wave
//
// The balance loss of a micro-batch of T tokens, with L layers and E experts, is E * sum f_e P_e.
// Here f_e is how often expert e was chosen over all layers. P_e is the sum of its probabilities
// over all layers and tokens. Both are divided by the L T rows of the routers. If shares are even,
// the loss is the number of experts per token.
//
// A micro-batch has statistics of its own, as in transformers' forward. The loss of a step is the
// mean over all micro-batches of all ranks, each with the same weight. So it does not depend on
// waves, placement or ranks; the size of a micro-batch changes it. All tokens of a row count:
// targets that are ignored, and every document of a packed row.
//
// f is a count and has no gradient. That of a token's probabilities is therefore the same for all
// tokens and layers of a micro-batch, and is known when its forward has passed the last layer.
//
// Memory:  ModelLayout::expert_load_bytes(), on the compute device. Only rows() waits for it.
// Bits:    counts are integers. Probabilities are added in fp64, layer by layer.
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/model_layout.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class ExpertLoad {
 public:
  struct Options {
    double coefficient = 0;          // of the balance loss; 0: there is none
    std::int64_t micro_batches = 1;  // of a wave, at most
  };
  ExpertLoad(const ModelLayout& model, const Options& options, const at::Device& device);

  // Whether the model has experts. Otherwise the calls below do nothing and return nothing.
  bool exists() const { return layers_ > 0; }
  bool balances() const { return exists() && options_.coefficient > 0; }

  void begin_step();
  void begin_wave();
  // Valid until the next call; null: the unit has no experts.
  const RoutedTokens* counted(int unit, std::size_t micro_batch);
  // The first `micro_batches` of the wave have passed all layers, with `tokens` each. `scale`
  // multiplies the gradients: that of the step's mean, and the loss scale.
  void end_forward(std::size_t micro_batches, std::int64_t tokens, double scale);
  // Null: there is none.
  const at::Tensor* gradient(int unit, std::size_t micro_batch) const;

  // One for each micro-batch of the step so far, without the coefficient: fp64 scalars on the
  // device.
  const std::vector<at::Tensor>& balance_losses() const { return losses_; }
  std::int64_t layers() const { return layers_; }
  std::int64_t experts() const { return experts_; }
  // How often the step's tokens chose each expert: [layers, experts], row by row. Waits for the
  // device.
  std::vector<std::int64_t> rows() const;

 private:
  int layer(int unit) const { return layer_of_[static_cast<std::size_t>(unit)]; }

  const Options options_;
  std::vector<int> layer_of_;  // by unit; -1: without experts
  std::int64_t layers_ = 0;
  std::int64_t experts_ = 0;
  at::Tensor rows_;           // int64 [layers, experts], of the step
  at::Tensor chosen_;         // int64 [micro-batches, experts], of the wave; as are the others
  at::Tensor probabilities_;  // fp64 [micro-batches, experts]
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> losses_;
  RoutedTokens counted_;
};

}  // namespace sluice::engine
