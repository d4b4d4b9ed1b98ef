// The speed at which this machine's CPU multiplies large matrices, an upper bound for the compute
// of a step on the CPU.
#pragma once

#include "offload/element_types.h"

namespace sluice::tools {

// Floating-point operations per second with LibTorch's current number of threads; the best of
// several products in about half a second.
double measure_cpu_products(offload::ElementType type);

}  // namespace sluice::tools
