#include "tools/session/open_queue.h"

#include "aio/make_backend.h"

namespace sluice::tools {

Result<FileQueue> open_queue(aio::IoWatchdog& watchdog) {
  constexpr int kQueueDepth = 32;
  FileQueue made;
  SLUICE_ASSIGN_OR_RETURN(made.backend, aio::make_backend({.kind = aio::BackendKind::kAuto,
                                                           .queue_depth = kQueueDepth}));
  SLUICE_ASSIGN_OR_RETURN(made.queue,
                          aio::IoQueue::create(*made.backend, {.queue_depth = kQueueDepth}));
  made.watch = watchdog.watch(*made.queue);
  return made;
}

}  // namespace sluice::tools
