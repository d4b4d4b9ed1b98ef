// The I/O queue of a command that only reads and writes files. The watchdog reports operations that
// hang.
#pragma once

#include <memory>

#include "aio/io_backend.h"
#include "aio/io_queue.h"
#include "aio/io_watchdog.h"
#include "aio/result.h"

namespace sluice::tools {

struct FileQueue {
  std::unique_ptr<aio::IoBackend> backend;
  std::unique_ptr<aio::IoQueue> queue;
  aio::IoWatchdog::Watch watch;
};

Result<FileQueue> open_queue(aio::IoWatchdog& watchdog);

}  // namespace sluice::tools
