// UnitInputStore: keeps what each unit was given in forward until its backward, bit for bit.
//
//   for (unit, ascending)  { store.keep(unit, inputs); ... forward ... }
//   for (unit, descending) { for (m) { input = store.take(unit, m); ... backward ... }
//                            store.release(unit); }
//
// Two forms. The plain one keeps the tensors where they are. The other, on CUDA, holds a few units'
// inputs in a ring on the GPU and sends the rest to pinned host memory, on streams of its own:
// out under the units' forward, back ahead of their backward. What a unit saves for itself where
// nothing is recomputed (Saved) is not an input, and stays on the GPU.
//
// In either form those of some units may go on to the drives (spilled_inputs.h).
//
// Threads: the one that trains; nothing waits for the device.
// Errors:  as LibTorch's, thrown; TrainError where a drive fails.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice::engine {

class UnitInputStore {
 public:
  virtual ~UnitInputStore() = default;

  // The unit's inputs, by micro-batch, before its forward is enqueued.
  virtual void keep(int unit, std::span<const at::Tensor> inputs) = 0;
  // One of them, once; not to be used by what is enqueued after release().
  virtual at::Tensor take(int unit, std::size_t micro_batch) = 0;
  // All were taken, and the unit's backward is enqueued.
  virtual void release(int unit) = 0;

  virtual std::uint64_t to_host_bytes() const { return 0; }  // copied so far
  virtual std::uint64_t from_host_bytes() const { return 0; }
};

class PlainUnitInputStore final : public UnitInputStore {
 public:
  explicit PlainUnitInputStore(int units) : inputs_(static_cast<std::size_t>(units)) {}

  void keep(int unit, std::span<const at::Tensor> inputs) override {
    at(unit).assign(inputs.begin(), inputs.end());
  }
  // Its memory is free when the caller is done with it.
  at::Tensor take(int unit, std::size_t micro_batch) override {
    return std::move(at(unit)[micro_batch]);
  }
  void release(int unit) override { at(unit).clear(); }

 private:
  std::vector<at::Tensor>& at(int unit) { return inputs_[static_cast<std::size_t>(unit)]; }

  std::vector<std::vector<at::Tensor>> inputs_;  // by unit and micro-batch
};

}  // namespace sluice::engine
