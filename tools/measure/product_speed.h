// How fast this machine's CPU multiplies large matrices: the limit of what a step can compute
// there.
#pragma once

#include "offload/element_types.h"

namespace sluice::tools {

// Floating-point operations a second, with as many threads as LibTorch now has; the best of several
// products in about half a second.
double measure_cpu_products(offload::ElementType type);

}  // namespace sluice::tools
