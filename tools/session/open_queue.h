// The queue of a command that reads and writes files, and computes nothing. Whatever hangs in it is
// reported while it hangs.
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
