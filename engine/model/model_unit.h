// ModelUnit: one unit of a model between its input and its output (the embedding, one transformer
// block), with forward and backward written out. There is no autograd tape: nothing outlives a
// pass but what `Saved` holds and what the caller keeps, and no saved tensor refers to a parameter,
// so a slot can be reused as soon as a call has returned (on CUDA: as soon as the stream has done
// the call's work).
//
// Shapes:   B micro-batch, T sequence, C hidden. Token ids are int64 [B, T]; everything between
//           units is [B, T, C], contiguous, in the parameters' dtype.
// dtypes:   parameters and activations are fp32, bf16 or fp16 (float64 on the CPU, for checks);
//           gradients of parameters are fp32 (float64 with float64) and are added to, but for
//           those that PassContext::overwrites lets a pass write. Statistics of norms and the
//           softmax are fp32.
// Devices:  CPU and CUDA. On CUDA everything runs on the current stream, and no call waits for the
//           device; one thread per device may run units, as they use its default generator.
// Dropout:  masks are drawn from (run_seed, step, micro_batch, unit, rank, call site) alone, so
//           backward and recompute() see forward's masks without storing them.
// Bits:     the same inputs give the same output and, when `deterministic`, the same gradients; on
//           the CPU for one number of threads. recompute() leaves in `saved` what forward() did.
// Errors:   c10::Error, as LibTorch has it; a parameter whose slot was released throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/documents.h"
#include "engine/model/unit_layout.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

// Where in the run a pass is.
struct PassContext {
  std::uint64_t run_seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  int unit = 0;
  int rank = 0;
  bool training = true;        // dropout
  bool deterministic = false;  // costs time on CUDA
  // Backward writes the gradients of parameters with ParameterSpec::gradient_is_product, whatever
  // was there: for the first micro-batch, which saves zeroing and reading them.
  bool overwrites = false;
  // Of the micro-batch; null: each sequence is one document. The same in all passes of a unit.
  const Documents* documents = nullptr;
};

// What forward leaves for backward. A bag of tensors, so that they can be counted or moved away.
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
  // Moves one out: its memory is free as soon as the caller is done with it.
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

  // `saved` null: nothing is kept, and backward needs recompute() first.
  virtual at::Tensor forward(const PassContext& context, const UnitViews& parameters,
                             const at::Tensor& input, Saved* saved) const = 0;
  // Fills `saved` from the input alone, for less than a forward: no output is made.
  virtual void recompute(const PassContext& context, const UnitViews& parameters,
                         const at::Tensor& input, Saved& saved) const = 0;
  // Adds to the gradients (see PassContext::overwrites) and returns the input's; undefined where
  // the input is token ids, and then `parameters` may be empty. Empties `saved` as it goes. `input`
  // is the one forward had.
  virtual at::Tensor backward(const PassContext& context, const UnitViews& parameters,
                              const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                              const UnitViews& gradients) const = 0;

  // Inference, apart from training's passes: the output of the positions that follow those in
  // `cache`, [1, T, C], without dropout, the same as forward's to rounding. Either the cache is
  // empty, or T is 1. The cache's owner calls advance() when every unit has been extended.
  virtual at::Tensor extend(const UnitViews& parameters, const at::Tensor& input,
                            KvCache& cache) const = 0;

 private:
  UnitLayout layout_;
};

}  // namespace sluice::engine
