// UnitProgress: how far one step has progressed, unit by unit, shared between the updating thread
// and the threads that wait; and the first error, which ends the step.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "aio/result.h"
#include "offload/state/unit_source.h"

namespace sluice::offload {

class UnitProgress {
 public:
  // All units start as done: no step is in progress.
  explicit UnitProgress(std::size_t units) : units_(units) {}

  // Makes all units pending. Call only after every unit of the previous step is done.
  void begin_step();
  // The host's part of the unit is updated; `arrays` is for its GPU part.
  void host_done(int unit, const UnitArrays& arrays);
  // The first error is kept; every waiter gets it, now and later.
  void fail(Error error);

  // Waits until the host's part is updated. Then the first waiter runs `finish` with the unit's
  // arrays, once a step. `finish` must not wait for the updating thread, which may be blocked
  // meanwhile.
  using Finish = std::function<Status(int unit, const UnitArrays& arrays)>;
  Status wait(int unit, const Finish& finish);
  // Whether wait() would return without waiting.
  bool host_is_done(int unit) const;
  Status status() const;

 private:
  enum class State : std::uint8_t { kPending, kHostDone, kDone };
  struct Unit {
    State state = State::kDone;
    UnitArrays arrays;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Unit> units_;  // guarded by mutex_
  Status error_;             // guarded by mutex_
};

}  // namespace sluice::offload
