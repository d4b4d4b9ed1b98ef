#include "tools/watch/run_view.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>

namespace sluice::watch {
namespace {

// File systems whose locks may be held on another machine or by a server process.
bool is_shared(const std::string& path) {
  constexpr std::uint32_t kFuse = 0x65735546, kLustre = 0x0BD00BD0, kCifs = 0xFF534D42,
                          kSmb2 = 0xFE534D42, kGpfs = 0x47504653, kBeeGfs = 0x19830326;
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return true;
  switch (static_cast<std::uint32_t>(info.f_type)) {
    case NFS_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case kFuse:
    case kLustre:
    case kCifs:
    case kSmb2:
    case kGpfs:
    case kBeeGfs:
      return true;
    default:
      return false;
  }
}

}  // namespace

// "1: FLOCK  ADVISORY  WRITE 708 fe:00:5586959 0 EOF"
bool lists_lock(std::string_view locks, std::uint64_t inode) {
  while (!locks.empty()) {
    const std::string_view line = locks.substr(0, locks.find('\n'));
    locks.remove_prefix(std::min(locks.size(), line.size() + 1));
    if (line.find(" FLOCK ") == line.npos) continue;
    const std::size_t colon = line.rfind(':');
    std::uint64_t number = 0;
    const char* const end = line.data() + line.size();
    if (colon != line.npos &&
        std::from_chars(line.data() + colon + 1, end, number).ec == std::errc{} && number == inode)
      return true;
  }
  return false;
}

RunLock run_lock(const std::string& folder) {
  const std::string path = folder + "/lock";
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno == ENOENT ? RunLock::kFree : RunLock::kUnknown;
  std::ifstream file("/proc/locks");
  const std::string locks{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) return RunLock::kUnknown;
  if (lists_lock(locks, info.st_ino)) return RunLock::kHeld;
  return is_shared(path) ? RunLock::kUnknown : RunLock::kFree;
}

namespace {

constexpr double kLeastGraceS = 5;
constexpr double kSilentS = 600;
constexpr double kRestartS = 30;  // after its end a run still frees memory or saves weights

bool is_multiple(std::int64_t step, std::int64_t every) {
  return every > 0 && step > 0 && step % every == 0;
}

RunPhase while_running(const RunObservation& observation, double now_unix_s) {
  const double since_s =
      now_unix_s -
      (observation.last_step_unix_s > 0 ? observation.last_step_unix_s : observation.newest_unix_s);
  if (observation.last_step <= observation.begin_step && observation.has_begun)
    return RunPhase::kStarting;
  if (observation.last_step == 0) return RunPhase::kStarting;
  const bool is_last =
      observation.total_steps > 0 && observation.last_step >= observation.total_steps;
  if (is_last) return RunPhase::kSaving;
  const bool is_late = observation.interval_s > 0 && since_s > 1.3 * observation.interval_s;
  const std::int64_t next = observation.last_step + 1;
  if (is_late && observation.eval_every > 0 &&
      (is_multiple(next, observation.eval_every) || next == observation.total_steps))
    return RunPhase::kEvaluating;
  if (is_multiple(observation.last_step, observation.checkpoint_every) && observation.last_saved &&
      *observation.last_saved < observation.last_step)
    return RunPhase::kSaving;
  return RunPhase::kTraining;
}

}  // namespace

RunPhase phase_of(const RunObservation& observation, double now_unix_s) {
  if (!observation.is_there) return RunPhase::kWaiting;
  if (observation.end) {
    const bool is_another =
        observation.lock == RunLock::kHeld && now_unix_s - observation.end_unix_s > kRestartS;
    return is_another ? RunPhase::kStarting : *observation.end;
  }
  // If the clock was set back, files have times in the future.
  const double quiet_s = std::max(now_unix_s - observation.newest_unix_s, observation.unchanged_s);
  // A run takes its lock before it writes anything.
  if (observation.lock == RunLock::kFree && !observation.has_begun && observation.last_step == 0)
    return RunPhase::kStopped;
  if (observation.lock == RunLock::kFree &&
      quiet_s > std::max(kLeastGraceS, 3 * observation.interval_s))
    return observation.has_begun ? RunPhase::kCrashed : RunPhase::kStopped;
  if (observation.lock == RunLock::kUnknown &&
      quiet_s > std::max(kSilentS, 20 * observation.interval_s))
    return RunPhase::kSilent;
  return while_running(observation, now_unix_s);
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
