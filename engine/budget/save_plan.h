// SavePlan: when a run saves, and whether the disk of its folder has room for the checkpoints.
// SaveClock: whether a save is due.
//
// Saves by time are the default (run.checkpoint_minutes), provided that run.keep_last checkpoints
// and the one being written fit on the disk with the run's other files. Explicit settings are
// obeyed, with a warning if they do not fit. When a run saves does not change its results by a bit.
//
// Threads: one; nothing here blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"

namespace sluice::engine {

inline constexpr double kDefaultCheckpointMinutes = 30;
// The time that schedulers usually allow between a signal to end and SIGKILL.
inline constexpr double kUsualGraceS = 30;
// For a drive that was not measured.
inline constexpr double kAssumedSaveBytesPerS = 1e9;

// What a run may have to do between a signal and its end: at most a whole step and a save.
struct StopNeeds {
  std::uint64_t checkpoint_bytes = 0;
  std::optional<double> save_bytes_per_s;  // of the folder's drive, if measured
  std::optional<double> step_s;            // unset: not known yet

  double seconds() const;
};
// A sentence that compares the needed time with kUsualGraceS.
std::string stop_sentence(const StopNeeds& needs);

struct SaveNeeds {
  std::string folder;                       // the run's
  std::uint64_t checkpoint_bytes = 0;       // per checkpoint
  std::optional<std::uint64_t> free_bytes;  // on the folder's disk; unset: it cannot be determined
  std::uint64_t other_bytes = 0;            // other files that the run will put on that disk
  std::int64_t complete_checkpoints = 0;    // already in the folder
  std::int64_t first_step = 1;              // the next one
  std::optional<double> step_s;             // predicted
  std::optional<double> save_bytes_per_s = {};  // of the folder's drive, if measured
  bool in_place = false;                        // optimizer state on NVMe is not copied
};

struct SavePlan {
  std::int64_t every_steps = 0;  // 0: not by steps
  double every_minutes = 0;      // 0: not by time
  bool at_end = false;
  bool best = false;        // after evaluations with the lowest validation loss so far
  bool background = false;  // from a copy in RAM, while training continues
  std::string schedule;     // a sentence that says when the run saves
  StopNeeds stop = {};
  std::optional<std::string> warning;  // what does not fit, and what would; sentences

  // If true, the run also saves when it is interrupted.
  bool saves() const { return every_steps > 0 || every_minutes > 0 || at_end || best; }
};

// The caller, which has the memory plan, decides about saves in the background.
SavePlan plan_saves(const config::Run& run, const SaveNeeds& needs);

// Counts from the end of the last save, whatever triggered it, so that a long save is not
// immediately followed by another.
class SaveClock {
 public:
  SaveClock(const SavePlan& plan, std::int64_t last_step, std::int64_t now_ns)
      : plan_(plan), last_step_(last_step), last_save_ns_(now_ns) {}

  // Whether to save after `step`. Saves by time are not due while a save is in progress.
  bool is_due(std::int64_t step, std::int64_t now_ns) const;
  void save_began() { goes_on_ = true; }
  void save_ended(std::int64_t now_ns) {
    goes_on_ = false;
    last_save_ns_ = now_ns;
  }

 private:
  const SavePlan plan_;
  const std::int64_t last_step_;
  std::int64_t last_save_ns_;
  bool goes_on_ = false;
};

}  // namespace sluice::engine
