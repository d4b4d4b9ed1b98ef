// IoObserver: observes the ends of an IoQueue's requests, for traces.
//
// Threads: on_end() runs on threads of the backend, under the queue's lock and before the request's
//          own callback: it must be short, and must not call the queue.
#pragma once

#include <cstdint>

#include "aio/io_request.h"

namespace sluice::aio {

class IoObserver {
 public:
  virtual ~IoObserver() = default;
  // The request is as its owner prepared it, with its status. `end_ns` is from the backend's clock.
  virtual void on_end(const IoRequest& request, std::int64_t end_ns) noexcept = 0;
};

}  // namespace sluice::aio
