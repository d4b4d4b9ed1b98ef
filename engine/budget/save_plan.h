// SavePlan: when a run saves, and whether the disk of its folder has room for what that leaves
// there. SaveClock: whether it is time.
//
// Saves by time are the default (run.checkpoint_minutes), provided that run.keep_last checkpoints
// and the one being written fit beside what else the run puts on that disk. What is set explicitly
// is obeyed, with a warning where it does not fit. When a run saves does not change a bit of it.
//
// Threads: one; nothing here blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"

namespace sluice::engine {

inline constexpr double kDefaultCheckpointMinutes = 30;
// What schedulers allow between a signal to end and SIGKILL, unless they are told otherwise.
inline constexpr double kUsualGraceS = 30;
// Of a drive that was not measured.
inline constexpr double kAssumedSaveBytesPerS = 1e9;

// What a run does between a signal and its end: at most a whole step and a save.
struct StopNeeds {
  std::uint64_t checkpoint_bytes = 0;
  std::optional<double> save_bytes_per_s;  // of the folder's drive, where it was measured
  std::optional<double> step_s;            // unset: not known yet

  double seconds() const;
};
// A sentence: how long that is, compared with kUsualGraceS.
std::string stop_sentence(const StopNeeds& needs);

struct SaveNeeds {
  std::string folder;                       // of the run
  std::uint64_t checkpoint_bytes = 0;       // of one
  std::optional<std::uint64_t> free_bytes;  // on the folder's disk; unset: it cannot be determined
  std::uint64_t other_bytes = 0;            // what else the run will put on that disk
  std::int64_t complete_checkpoints = 0;    // those that are already in the folder
  std::int64_t first_step = 1;              // the next one
  std::optional<double> step_s;             // as it is predicted
  std::optional<double> save_bytes_per_s = {};  // of the folder's drive, where it was measured
};

struct SavePlan {
  std::int64_t every_steps = 0;  // 0: not by steps
  double every_minutes = 0;      // 0: not by time
  bool at_end = false;
  bool background = false;  // from a copy in RAM, while training continues
  std::string schedule;     // a sentence: when the run saves
  StopNeeds stop = {};
  std::optional<std::string> warning;  // sentences: what does not fit, and what would

  // Then also when it is interrupted.
  bool saves() const { return every_steps > 0 || every_minutes > 0 || at_end; }
};

// Whether it saves in the background is left to who knows the memory.
SavePlan plan_saves(const config::Run& run, const SaveNeeds& needs);

// Counts from the end of the last save, whatever caused it: a long save is not immediately followed
// by the next.
class SaveClock {
 public:
  SaveClock(const SavePlan& plan, std::int64_t last_step, std::int64_t now_ns)
      : plan_(plan), last_step_(last_step), last_save_ns_(now_ns) {}

  // After `step`. Not by time while a save is in progress.
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
