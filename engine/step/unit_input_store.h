// UnitInputStore: keeps each unit's forward inputs until its backward, bit for bit.
//
//   for (unit, ascending)  { store.keep(unit, inputs); ... forward ... }
//   for (unit, descending) { for (m) { input = store.take(unit, m); ... backward ... }
//                            store.release(unit); }
//
// There are two forms. The plain one keeps the tensors where they are. The CUDA one holds a few
// units' inputs in a ring on the GPU and keeps the rest in pinned host memory. It copies on its own
// streams: out during forward, and back ahead of backward. Tensors that a unit saves because
// nothing is recomputed (Saved) are not inputs, and stay on the GPU.
//
// Either form may spill the inputs of some units to the drives (spilled_inputs.h).
//
// Threads: the training thread; no call waits for the device.
// Errors:  thrown: LibTorch's, or TrainError if a drive fails.
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
  // Takes one of the inputs, once. Work enqueued after release() must not use it.
  virtual at::Tensor take(int unit, std::size_t micro_batch) = 0;
  // Requires that all inputs were taken and the unit's backward is enqueued.
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
  // Its memory is freed when the caller drops it.
  at::Tensor take(int unit, std::size_t micro_batch) override {
    return std::move(at(unit)[micro_batch]);
  }
  void release(int unit) override { at(unit).clear(); }

 private:
  std::vector<at::Tensor>& at(int unit) { return inputs_[static_cast<std::size_t>(unit)]; }

  std::vector<std::vector<at::Tensor>> inputs_;  // by unit and micro-batch
};

}  // namespace sluice::engine
