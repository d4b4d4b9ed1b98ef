// ModelUnit: one unit of a model (the embedding, or one transformer block), with explicit forward
// and backward. There is no autograd tape: only `Saved` and the caller's tensors outlive a pass. No
// saved tensor refers to a parameter. A slot can therefore be reused when a call has returned (on
// CUDA: when the stream has done the call's work).
//
// Shapes:   B micro-batch, T sequence, C hidden. Token ids are int64 [B, T]. Activations between
//           units are [B, T, C], contiguous, in the parameters' dtype.
// dtypes:   parameters and activations are fp32, bf16 or fp16 (float64 on the CPU, for checks).
//           Gradients of parameters are fp32 (float64 with float64). They are added to, except
//           those that PassContext::overwrites lets a pass write. Statistics of norms and the
//           softmax are fp32.
// Devices:  CPU and CUDA. On CUDA everything runs on the current stream, and no call waits for the
//           device, except for experts without grouped products (ops/experts.h). Only one thread
//           per device may run units, because they use its default generator.
// Dropout:  masks are drawn only from (run_seed, step, micro_batch, unit, rank, call site), so
//           backward and recompute() use forward's masks without storing them.
// Bits:     the same inputs give the same output and, if `deterministic`, the same gradients. On
//           the CPU this needs the same number of threads. recompute() leaves the same tensors in
//           `saved` as forward().
// Errors:   thrown: LibTorch's c10::Error, also for a parameter whose slot was released.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/documents.h"
#include "engine/model/unit_layout.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// What a pass adds up of its tokens' routing (expert_load.h), on the compute device. Without the
// balance loss the last two are undefined.
struct RoutedTokens {
  at::Tensor rows;           // int64 [experts]: how often each was chosen in this layer
  at::Tensor chosen;         // int64 [experts]: the same, over the micro-batch's layers
  at::Tensor probabilities;  // fp64 [experts]: their sums over the micro-batch's tokens and layers
};

// The position of a pass in the run.
struct PassContext {
  std::uint64_t run_seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  int unit = 0;
  int rank = 0;
  bool training = true;        // enables dropout
  bool deterministic = false;  // slower on CUDA
  // Backward writes the gradients of parameters with ParameterSpec::gradient_is_product instead of
  // adding to them. Used for the first micro-batch, which saves zeroing and reading them.
  bool overwrites = false;
  // The micro-batch's; null: each sequence is one document. The same in all passes of a unit.
  const Documents* documents = nullptr;
  // With experts. Forward adds to it, recompute() and backward do not; null: nothing is counted.
  const RoutedTokens* routed = nullptr;
  // A gradient of the router's probabilities, [experts], the same for every token. Backward adds it
  // to theirs; null: none.
  const at::Tensor* balance_gradient = nullptr;
};

// The tensors that forward saves for backward, in a plain list, so that they can be counted or
// moved.
class Saved {
 public:
  Saved() = default;
  Saved(Saved&&) = default;
  Saved& operator=(Saved&&) = default;
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;
  ~Saved() = default;

  void assign(std::vector<at::Tensor> tensors) { tensors_ = std::move(tensors); }
  bool empty() const { return tensors_.empty(); }
  std::vector<at::Tensor>& tensors() { return tensors_; }
  // Moves a tensor out: its memory is freed when the caller drops it.
  at::Tensor take(std::size_t index) { return std::move(tensors_[index]); }
  void clear() { tensors_.clear(); }
  std::uint64_t bytes() const;

 private:
  std::vector<at::Tensor> tensors_;
};

class KvCache;

class ModelUnit {
 public:
  explicit ModelUnit(UnitLayout layout) : layout_(std::move(layout)) {}
  virtual ~ModelUnit() = default;
  ModelUnit(const ModelUnit&) = delete;
  ModelUnit& operator=(const ModelUnit&) = delete;

  const UnitLayout& layout() const { return layout_; }

  // `saved` null: saves no tensors, and backward needs recompute() first.
  virtual at::Tensor forward(const PassContext& context, const UnitViews& parameters,
                             const at::Tensor& input, Saved* saved) const = 0;
  // Fills `saved` from the input alone. It costs less than a forward, because it computes no
  // output.
  virtual void recompute(const PassContext& context, const UnitViews& parameters,
                         const at::Tensor& input, Saved& saved) const = 0;
  // Adds to the gradients (see PassContext::overwrites) and returns the input's gradient. That is
  // undefined if the input is token ids, and then `parameters` may be empty. Empties `saved` on the
  // way. `input` is forward's.
  virtual at::Tensor backward(const PassContext& context, const UnitViews& parameters,
                              const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                              const UnitViews& gradients) const = 0;

  // Inference, separate from training's passes. Returns the output of the positions that follow
  // those in `cache`, [1, T, C], without dropout, equal to forward's up to rounding. The cache's
  // owner calls advance() when every unit has been extended.
  virtual at::Tensor extend(const UnitViews& parameters, const at::Tensor& input,
                            KvCache& cache) const = 0;
  // Whether the keys of a text of `tokens` tokens depend on its length. A cache is then of no use
  // for a longer or a shorter text.
  virtual bool keys_depend_on_length(std::int64_t /*tokens*/) const { return false; }
  // A text of more tokens has other keys than one of fewer, and they depend on nothing else. 0:
  // there is no such number.
  virtual std::int64_t keys_change_beyond() const { return 0; }

 private:
  UnitLayout layout_;
};

}  // namespace sluice::engine
