// UnitProgress: how far one step has come, unit by unit, between the thread that updates and those
// that wait; and the first error, which ends it all.
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
  // Done at first: no step is under way.
  explicit UnitProgress(std::size_t units) : units_(units) {}

  // All units become pending. Only after every one of the previous step is done.
  void begin_step();
  // The host's part of the unit is updated; `arrays` is for the rest of it.
  void host_done(int unit, const UnitArrays& arrays);
  // The first error stays; every waiter gets it, now and from then on.
  void fail(Error error);

  // Waits until the host's part is updated; then `finish` runs with the unit's arrays, once a step,
  // for whoever comes first. It must not wait for the updating thread, which may be held up
  // meanwhile.
  using Finish = std::function<Status(int unit, const UnitArrays& arrays)>;
  Status wait(int unit, const Finish& finish);
  // wait() would not wait.
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
