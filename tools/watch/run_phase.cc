#include "tools/watch/run_phase.h"

#include <algorithm>

namespace sluice::watch {
namespace {

constexpr double kLeastGraceS = 5;
constexpr double kSilentS = 600;
constexpr double kRestartS = 30;  // after its end a run still frees memory or saves weights

bool is_multiple(std::int64_t step, std::int64_t every) {
  return every > 0 && step > 0 && step % every == 0;
}

RunPhase while_running(const RunSigns& signs, double now_unix_s) {
  const double since_s =
      now_unix_s - (signs.last_step_unix_s > 0 ? signs.last_step_unix_s : signs.newest_unix_s);
  if (signs.last_step <= signs.begin_step && signs.has_begun) return RunPhase::kStarting;
  if (signs.last_step == 0) return RunPhase::kStarting;
  const bool is_last = signs.total_steps > 0 && signs.last_step >= signs.total_steps;
  if (is_last) return RunPhase::kSaving;
  const bool is_late = signs.interval_s > 0 && since_s > 1.3 * signs.interval_s;
  const std::int64_t next = signs.last_step + 1;
  if (is_late && signs.eval_every > 0 &&
      (is_multiple(next, signs.eval_every) || next == signs.total_steps))
    return RunPhase::kEvaluating;
  if (is_multiple(signs.last_step, signs.checkpoint_every) && signs.last_saved &&
      *signs.last_saved < signs.last_step)
    return RunPhase::kSaving;
  return RunPhase::kTraining;
}

}  // namespace

RunPhase phase_of(const RunSigns& signs, double now_unix_s) {
  if (!signs.is_there) return RunPhase::kWaiting;
  if (signs.end) {
    const bool is_another =
        signs.lock == RunLock::kHeld && now_unix_s - signs.end_unix_s > kRestartS;
    return is_another ? RunPhase::kStarting : *signs.end;
  }
  // If the clock was set back, files have times in the future.
  const double quiet_s = std::max(now_unix_s - signs.newest_unix_s, signs.unchanged_s);
  // A run takes its lock before it writes anything.
  if (signs.lock == RunLock::kFree && !signs.has_begun && signs.last_step == 0)
    return RunPhase::kStopped;
  if (signs.lock == RunLock::kFree && quiet_s > std::max(kLeastGraceS, 3 * signs.interval_s))
    return signs.has_begun ? RunPhase::kCrashed : RunPhase::kStopped;
  if (signs.lock == RunLock::kUnknown && quiet_s > std::max(kSilentS, 20 * signs.interval_s))
    return RunPhase::kSilent;
  return while_running(signs, now_unix_s);
}

const char* phase_word(RunPhase phase) {
  switch (phase) {
    case RunPhase::kWaiting:
      return "waiting";
    case RunPhase::kStarting:
      return "starting";
    case RunPhase::kTraining:
      return "training";
    case RunPhase::kEvaluating:
      return "evaluating";
    case RunPhase::kSaving:
      return "saving";
    case RunPhase::kSilent:
      return "silent";
    case RunPhase::kCompleted:
      return "completed";
    case RunPhase::kInterrupted:
      return "interrupted";
    case RunPhase::kFailed:
      return "failed";
    case RunPhase::kCrashed:
      return "crashed";
    case RunPhase::kStopped:
      return "stopped";
  }
  return "";
}

bool is_over(RunPhase phase) { return phase >= RunPhase::kCompleted; }

bool is_bad(RunPhase phase) { return phase == RunPhase::kFailed || phase == RunPhase::kCrashed; }

}  // namespace sluice::watch
