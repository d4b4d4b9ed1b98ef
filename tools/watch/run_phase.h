// RunPhase: what a run is doing, inferred from what it wrote and when. A run records when it
// begins, when a step or a checkpoint is done, and when it ends. Its state in between follows from
// its configuration and the time that has passed.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/watch/run_lock.h"

namespace sluice::watch {

enum class RunPhase : std::uint8_t {
  kWaiting,  // there is no run yet
  kStarting,
  kTraining,
  kEvaluating,
  kSaving,  // while training continues, or at the end
  kSilent,  // nothing new for a long time; whether it still runs is unknown
  kCompleted,
  kInterrupted,
  kFailed,
  kCrashed,  // it began, recorded no end, and no process holds the lock
  kStopped,  // like kCrashed, for a run that did not record its begin
};

struct RunSigns {
  bool is_there = false;  // at least one of its files exists
  RunLock lock = RunLock::kUnknown;
  std::optional<RunPhase> end;  // how the last life ended, if it recorded that
  double end_unix_s = 0;
  bool has_begun = false;  // in this life
  std::int64_t begin_step = 0;
  double newest_unix_s = 0;  // time of the last write
  double unchanged_s = 0;    // how long no write was seen, independent of the wall clock
  std::int64_t last_step = 0;
  double last_step_unix_s = 0;  // 0: unknown
  double interval_s = 0;        // between steps; 0: unknown
  std::int64_t total_steps = 0;
  std::int64_t eval_every = 0;
  std::int64_t checkpoint_every = 0;
  // The last step with a checkpoint or an attempt at one; nullopt: unknown.
  std::optional<std::int64_t> last_saved;
};

RunPhase phase_of(const RunSigns& signs, double now_unix_s);

const char* phase_word(RunPhase phase);  // "training", ...
bool is_over(RunPhase phase);
bool is_bad(RunPhase phase);  // failed, crashed

}  // namespace sluice::watch
