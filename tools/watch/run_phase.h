// RunPhase: what a run is doing, concluded from what it wrote down and when. A run says when it
// begins, when a step and a checkpoint are done, and when it ends; what it is at in between follows
// from its configuration and the time that has passed.
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
  kSaving,  // while training goes on, or at the end
  kSilent,  // nothing new for long, and whether it still runs is not known
  kCompleted,
  kInterrupted,
  kFailed,
  kCrashed,  // it began, did not end, and nobody trains there
  kStopped,  // as before, of a run that did not say when it began
};

struct RunSigns {
  bool is_there = false;  // any of its files
  RunLock lock = RunLock::kUnknown;
  std::optional<RunPhase> end;  // how the last life ended, where it said so
  double end_unix_s = 0;
  bool has_begun = false;  // in this life
  std::int64_t begin_step = 0;
  double newest_unix_s = 0;  // when anything was written last
  double unchanged_s = 0;    // for how long nothing was seen to be written, whatever the time is
  std::int64_t last_step = 0;
  double last_step_unix_s = 0;  // 0: not known
  double interval_s = 0;        // between steps; 0: not known
  std::int64_t total_steps = 0;
  std::int64_t eval_every = 0;
  std::int64_t checkpoint_every = 0;
  // Of the last step that has a checkpoint, or an attempt at one; nothing: it cannot be known.
  std::optional<std::int64_t> last_saved;
};

RunPhase phase_of(const RunSigns& signs, double now_unix_s);

const char* phase_word(RunPhase phase);  // "training", ...
bool is_over(RunPhase phase);
bool is_bad(RunPhase phase);  // failed, crashed

}  // namespace sluice::watch
