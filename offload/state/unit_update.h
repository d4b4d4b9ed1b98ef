// UnitUpdate: one unit's share of a step, and which scalars apply to which of its elements. The
// boundaries between scalar ranges never change how state is cut or where it is stored.
// UpdateWorker and UnitProgress: updates in the background, and how far they are.
//
// Memory:  spans refer to data that the offloader keeps during the step. Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/state/unit_source.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

// Begins where the previous range ends.
struct ScalarRange {
  std::uint64_t end = 0;  // in the unit's shard
  int group = 0;
};

// UnitSpec::scalars, with adjacent ranges of one group merged.
std::vector<ScalarRange> scalar_ranges(const UnitSpec& unit);

struct UnitUpdate {
  int unit = 0;
  std::span<const AdamwScalars> groups;  // by SubGroup::group or ScalarRange::group
  std::span<const ScalarRange> ranges;   // empty: a sub-group's own group applies
  UnitArrays arrays;
  MomentKeys moment_keys;           // for this unit and step; used for bf16 moments
  std::uint64_t shard_element = 0;  // the arrays' first element, in the unit; keys rounding
  bool keeps_parameters = false;    // OptimizerOffloader::Step::keeps_parameters

  struct Piece {
    const AdamwScalars& scalars;
    std::uint64_t end;  // in the unit's shard
  };
  // For elements [begin, end) of a sub-group of `group`: the scalars that apply from `begin` on,
  // and the end of the range in which they do.
  Piece piece(int group, std::uint64_t begin, std::uint64_t end) const;
};

// UpdateWorker: a thread that runs one job at a time, for updates in the background.
//
// Threads: start() and wait() from one thread. Nothing is allocated after create().
class UpdateWorker {
 public:
  // The job must not throw. kOutOfMemory: the thread could not be started.
  static Result<std::unique_ptr<UpdateWorker>> create(std::function<void()> job);
  ~UpdateWorker();  // waits for the job
  UpdateWorker(const UpdateWorker&) = delete;
  UpdateWorker& operator=(const UpdateWorker&) = delete;

  // Runs the job once, after the previous run has ended.
  void start();
  // Waits until the last run has ended.
  void wait();

 private:
  explicit UpdateWorker(std::function<void()> job) : job_(std::move(job)) {}
  void run();

  const std::function<void()> job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

// UnitProgress: how far one step has progressed, unit by unit, shared between the updating thread
// and the threads that wait; and the first error, which ends the step.
//
// Threads: any.
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
