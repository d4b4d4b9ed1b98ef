// The rates of a GPU and its bus, as measured by gpu_probe.h.
#pragma once

#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

struct GpuSpeeds {
  offload::DuplexRates bus;         // between registered host memory and GPU
  double copy_bytes_per_s = 0;      // within the GPU's memory, read plus written
  double adamw_elements_per_s = 0;  // of the AdamW step in the run's form
  double matmul_flops_per_s = 0;    // dense, in the run's type
};

}  // namespace sluice::engine
