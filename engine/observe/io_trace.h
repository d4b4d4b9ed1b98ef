// IoTrace: the reads and writes of IO queues as spans of a trace, each with its bytes and where
// they lie. A span is a request, named by its label: from when its first block went to the drive
// until its last one was back, which is the time the drive was busy with it.
//
// Threads: as IoObserver; without a lock. Costs two loads per request while no trace is active.
#pragma once

#include "aio/io_observer.h"
#include "engine/observe/trace_log.h"

namespace sluice::engine {

class IoTrace final : public aio::IoObserver {
 public:
  // `log` must outlive the queues; their clock is the trace's.
  explicit IoTrace(TraceLog& log) : log_(log) {}

  void on_end(const aio::IoRequest& request, std::int64_t end_ns) noexcept override;

 private:
  TraceLog& log_;
};

}  // namespace sluice::engine
