// Sets up an io_uring that works, and has the messages for one that does not. Part of UringRing.
#pragma once

#include <liburing.h>

#include "aio/result.h"

namespace sluice::aio {

// With the best set of features that the kernel has, and tested: a no-op went through it.
// Containers often forbid io_uring_setup, and some allow it and refuse io_uring_enter. kUnsupported
// for both; then nothing is left behind.
Status set_up_ring(io_uring& ring, unsigned entries);

// `error_number` 0: it returned without doing anything.
Error enter_refused(int error_number);

}  // namespace sluice::aio
