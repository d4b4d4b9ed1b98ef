// What a GPU and the bus to it do, as gpu_probe.h measures it.
#pragma once

#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

struct GpuSpeeds {
  offload::DuplexRates bus;         // registered host memory and GPU
  double copy_bytes_per_s = 0;      // of the GPU's memory, read plus written
  double adamw_elements_per_s = 0;  // the step of the run's form
  double matmul_flops_per_s = 0;    // dense, in the run's type
};

}  // namespace sluice::engine
