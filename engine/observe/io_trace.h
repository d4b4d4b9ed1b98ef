// IoTrace: the reads and writes of IO queues as spans of a trace, each with its size and offset. A
// span is a request, named by its label. It lasts from the submission of its first block to the
// drive until the completion of its last one, which is the time the drive was busy with it.
//
// Threads: as IoObserver; without a lock. Costs two loads per request while no trace is active.
#pragma once

#include "aio/io_observer.h"
#include "engine/observe/trace_log.h"

namespace sluice::engine {

class IoTrace final : public aio::IoObserver {
 public:
  // `log` must outlive the queues, which must use the trace's clock.
  explicit IoTrace(TraceLog& log) : log_(log) {}

  void on_end(const aio::IoRequest& request, std::int64_t end_ns) noexcept override;

 private:
  TraceLog& log_;
};

}  // namespace sluice::engine
