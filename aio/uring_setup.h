// Sets up an io_uring that works, and has the sentences for one that does not. Part of UringRing.
#pragma once

#include <liburing.h>

#include "aio/result.h"

namespace sluice::aio {

// With the best set of features that the kernel has, and tried: a no-op went through it. Containers
// often forbid io_uring_setup, and some allow it and refuse io_uring_enter. kUnsupported for both;
// nothing is left behind then.
Status set_up_ring(io_uring& ring, unsigned entries);

// `error_number` 0: it returned without doing anything.
Error enter_refused(int error_number);

}  // namespace sluice::aio
