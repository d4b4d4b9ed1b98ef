// CudaCopySpan: records a copy in the trace, from here to the end of the scope, at the times when
// its stream reaches each end. Enqueues nothing while no trace is active.
//
//   const CudaCopySpan span({.trace = trace, .track = TraceTrack::kH2d, .phase = "parameters",
//                            .name = "h.0", .bytes = bytes}, stream);
//   cudaMemcpyAsync(..., stream);
//   loaded.record(stream);  // inside: waiting for the copy is not waiting for the span
//
// Names and the trace must outlive the stream's work.
//
// Threads: the one that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "aio/clock.h"
#include "engine/observe/trace_log.h"

namespace sluice::engine {

class CudaCopySpan {
 public:
  struct Copy {
    TraceLog* trace = nullptr;  // null: not traced
    TraceTrack track = TraceTrack::kH2d;
    const char* phase = nullptr;  // which part of the unit is copied
    const char* name = "";
    std::uint64_t bytes = 0;
  };

  CudaCopySpan(const Copy& copy, cudaStream_t stream) : stream_(stream) {
    if (copy.trace == nullptr || !copy.trace->active()) return;
    pending_ = std::make_unique<Pending>();
    pending_->trace = copy.trace;
    pending_->span.track = copy.track;
    pending_->span.phase = copy.phase;
    pending_->span.name = copy.name;
    pending_->span.args[0] = {"bytes", static_cast<std::int64_t>(copy.bytes)};
    if (cudaLaunchHostFunc(stream, &CudaCopySpan::begin, pending_.get()) != cudaSuccess)
      pending_.reset();
  }
  ~CudaCopySpan() {
    if (pending_ == nullptr) return;
    if (cudaLaunchHostFunc(stream_, &CudaCopySpan::end, pending_.get()) == cudaSuccess) {
      static_cast<void>(pending_.release());  // end() deletes it
    } else {
      static_cast<void>(cudaStreamSynchronize(stream_));  // begin() may not have run yet
    }
  }
  CudaCopySpan(const CudaCopySpan&) = delete;
  CudaCopySpan& operator=(const CudaCopySpan&) = delete;

 private:
  struct Pending {
    TraceLog* trace = nullptr;
    TraceSpan span;
  };

  static void begin(void* it) noexcept {
    static_cast<Pending*>(it)->span.begin_ns = SteadyClock().now_ns();
  }
  static void end(void* it) noexcept {
    const std::unique_ptr<Pending> pending(static_cast<Pending*>(it));
    pending->span.end_ns = SteadyClock().now_ns();
    pending->trace->add(pending->span);
  }

  cudaStream_t stream_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace sluice::engine
