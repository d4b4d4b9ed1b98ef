// The rates of a GPU and its bus, as measured by gpu_probe.h.
#pragma once

#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

// What a machine lets the GPU pin: of `tried_bytes` of host memory, `pinned_bytes`.
struct PinTrial {
  double tried_bytes = 0;  // 0: not tried
  double pinned_bytes = 0;
  bool is_limited() const { return pinned_bytes < tried_bytes; }
};

struct GpuSpeeds {
  // Between pinned host memory and GPU. If pinning is limited: pageable memory, as HostCopies
  // copies it.
  offload::DuplexRates bus;
  PinTrial pin;
  double copy_bytes_per_s = 0;      // within the GPU's memory, read plus written
  double adamw_elements_per_s = 0;  // of the AdamW step in the run's form
  double matmul_flops_per_s = 0;    // dense, in the run's type
};

}  // namespace sluice::engine
