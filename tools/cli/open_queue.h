// The queue of a command that reads and writes files, and computes nothing.
#pragma once

#include <memory>

#include "aio/io_backend.h"
#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::tools {

struct FileQueue {
  std::unique_ptr<aio::IoBackend> backend;
  std::unique_ptr<aio::IoQueue> queue;
};

Result<FileQueue> open_queue();

}  // namespace sluice::tools
