#include "aio/virtual_loop.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"

namespace sluice::aio {

void VirtualLoop::schedule_at(std::int64_t time_ns, Event event) {
  SLUICE_CHECK(std::this_thread::get_id() == thread_, "a VirtualLoop is used by two threads");
  events_.push_back({std::max(time_ns, now_ns_), next_order_++, std::move(event)});
  std::push_heap(events_.begin(), events_.end(), Later());
}

void VirtualLoop::schedule_after(std::int64_t delay_ns, Event event) {
  schedule_at(now_ns_ + delay_ns, std::move(event));
}

bool VirtualLoop::run_one() {
  SLUICE_CHECK(std::this_thread::get_id() == thread_, "a VirtualLoop is used by two threads");
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), Later());
  // Removed from the heap before it runs, because it may schedule events, which moves the entries.
  const Entry entry = std::move(events_.back());
  events_.pop_back();
  now_ns_ = entry.time_ns;
  entry.event();
  return true;
}

void VirtualLoop::run() {
  while (run_one()) {
  }
}

bool VirtualLoop::run_until(const std::function<bool()>& condition) {
  while (!condition()) {
    if (!run_one()) return false;
  }
  return true;
}

}  // namespace sluice::aio
