// UnitSource: where a unit's parameters and gradients are, as reported to the optimizer by their
// owner.
#pragma once

#include "aio/result.h"

namespace sluice::offload {

// Pointers to the first element of the unit's shard; null if no sub-group needs the array.
struct UnitArrays {
  void* param = nullptr;       // host: std::uint16_t, or float in fp32 mode; read and written
  const void* grad = nullptr;  // host, of the grad_type
  void* gpu_param = nullptr;
  const void* gpu_grad = nullptr;
};

class UnitSource {
 public:
  virtual ~UnitSource() = default;
  // Called just before work on a unit, on the working thread; may wait for the parameters to
  // arrive. Gradients are needed in a step only.
  virtual Result<UnitArrays> begin(int unit) = 0;
  // The host's part of the unit is done, and its host arrays are not used again: in a step its
  // gradient is consumed and its parameters are updated. Called on the working thread, before
  // wait_ready() returns for the unit. Not called for a unit that failed.
  virtual void ready(int unit) noexcept = 0;
};

}  // namespace sluice::offload
