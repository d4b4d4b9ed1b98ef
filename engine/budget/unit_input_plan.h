// UnitInputPlan: where inputs of units that go to the host between forward and backward lie, and
// what that takes: a ring of a few units' inputs on the GPU, and a place in host memory for each
// block whose input moves.
#pragma once

#include <cstdint>

#include "engine/budget/unit_input_ring.h"
#include "engine/model/model_layout.h"
#include "offload/element_types.h"

namespace sluice::engine {

struct UnitInputOptions {
  std::int64_t micro_batches = 1;  // at most, of a step
  std::int64_t micro_batch = 1;    // sequences
  std::int64_t tokens = 0;         // of a sequence
  offload::ElementType type = offload::ElementType::kBf16;
  int slots = 3;  // of the ring: one is computed with, one just used, the others are copied into
};

class UnitInputPlan {
 public:
  UnitInputPlan(const ModelLayout& model, const UnitInputOptions& options);

  const UnitInputRing& ring() const { return ring_; }
  std::uint64_t unit_input_bytes() const { return unit_input_bytes_; }  // of one micro-batch
  std::uint64_t place_bytes() const { return place_bytes_; }            // that it lies in
  std::uint64_t unit_bytes() const { return unit_bytes_; }              // a unit's places

  std::uint64_t gpu_bytes() const {
    return static_cast<std::uint64_t>(ring_.slots()) * unit_bytes_;
  }
  std::uint64_t host_bytes() const {
    return static_cast<std::uint64_t>(ring_.moved()) * unit_bytes_;
  }

 private:
  UnitInputRing ring_;
  std::uint64_t unit_input_bytes_;
  std::uint64_t place_bytes_;
  std::uint64_t unit_bytes_;
};

}  // namespace sluice::engine
