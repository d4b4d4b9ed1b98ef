// VirtualLoop: a clock that jumps from event to event. Simulations of seconds run in milliseconds,
// and the same seed gives the same history.
//
// Several simulated drives and executors share one loop, and therefore one timeline. Events at the
// same time run in the order in which they were scheduled; an event may schedule more events. Time
// only moves forward, and only to events.
//
// Threads: one, the same for every call (checked).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "aio/clock.h"

namespace sluice::aio {

class VirtualLoop final : public Clock {
 public:
  using Event = std::function<void()>;

  std::int64_t now_ns() const override { return now_ns_; }

  void schedule_at(std::int64_t time_ns, Event event);  // a time in the past means now
  void schedule_after(std::int64_t delay_ns, Event event);

  bool run_one();  // the next event; false if there is none
  void run();      // until none is left
  // Runs until the condition holds; false if the loop ran out of events first: the caller would
  // wait forever.
  bool run_until(const std::function<bool()>& condition);
  std::size_t pending() const { return events_.size(); }

 private:
  struct Entry {
    std::int64_t time_ns;
    std::uint64_t order;
    Event event;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.time_ns != b.time_ns ? a.time_ns > b.time_ns : a.order > b.order;
    }
  };

  std::int64_t now_ns_ = 0;
  std::uint64_t next_order_ = 0;
  std::vector<Entry> events_;  // a heap, the earliest on top
  const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace sluice::aio
