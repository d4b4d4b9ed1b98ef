// Sets up an io_uring, and says why a kernel or a container refuses one.
#pragma once

#include <liburing.h>

#include "aio/result.h"

namespace sluice::aio {

// Sets up a ring with the best features of the kernel, and tests it with a no-op. Containers often
// forbid io_uring_setup, and some allow it but refuse io_uring_enter: both return kUnsupported, and
// no ring remains.
Status set_up_ring(io_uring& ring, unsigned entries);

// `error_number` 0: io_uring_enter returned without doing anything.
Error enter_refused(int error_number);

}  // namespace sluice::aio
