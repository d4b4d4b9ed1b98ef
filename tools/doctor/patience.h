// Calls that may hang, with a bound on how long they are waited for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "aio/io_thread.h"

namespace sluice::doctor {

// The result of `work`, which runs on a thread of its own; empty if it takes longer than
// `patience`. Then the thread is abandoned, so `work` owns all that it uses.
template <typename Work>
auto within(std::chrono::milliseconds patience, const Work& work)
    -> std::optional<decltype(work())> {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<decltype(work())> result;  // guarded by mutex
  };
  const auto shared = std::make_shared<Shared>();
  try {
    const aio::SignalsBlocked signals_blocked;
    std::thread([shared, work] {
      auto result = work();
      const std::lock_guard lock(shared->mutex);
      shared->result = std::move(result);
      shared->changed.notify_all();
    }).detach();
  } catch (const std::system_error&) {  // the thread limit is reached
    return work();
  }
  std::unique_lock lock(shared->mutex);
  shared->changed.wait_for(lock, patience, [&] { return shared->result.has_value(); });
  return std::move(shared->result);
}

}  // namespace sluice::doctor
