// RunView: the state of a run at one moment, as numbers and sentences. Plain data; unknown values
// are missing. Texts are unescaped, as in the run's files: code that shows them has to escape them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/report/run_record.h"

namespace sluice::watch {

// Whether a process trains in a run's folder, without touching the lock: taking it to see whether
// it is free could refuse a run that begins at that moment. The kernel lists the locks of this
// machine in /proc/locks, but not those of network or user-space file systems, and not in another
// container.
//
// Threads: any. Errors: kUnknown.
enum class RunLock : std::uint8_t { kUnknown, kFree, kHeld };

// `folder`: the run's. kFree if there is no lock file.
RunLock run_lock(const std::string& folder);

// Whether `locks`, the text of /proc/locks, has a flock() of this inode.
bool lists_lock(std::string_view locks, std::uint64_t inode);

// RunPhase: what a run is doing, inferred from what it wrote and when. A run records when it
// begins, when a step or a checkpoint is done, and when it ends. Its state in between follows from
// its configuration and the time that has passed.
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

struct RunObservation {
  bool is_there = false;  // at least one of its files exists
  RunLock lock = RunLock::kUnknown;
  std::optional<RunPhase> end;  // how the last attempt ended, if it recorded that
  double end_unix_s = 0;
  bool has_begun = false;  // in this attempt
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

RunPhase phase_of(const RunObservation& observation, double now_unix_s);

const char* phase_word(RunPhase phase);  // "training", ...
bool is_over(RunPhase phase);
bool is_bad(RunPhase phase);  // failed, crashed

struct TierView {
  std::string name;  // "gpu", "cpu", "nvme"
  std::optional<double> planned_bytes;
  std::optional<double> budget_bytes;
  std::optional<double> used_bytes;  // GPU: peak so far; host: resident now
};

struct EventRow {
  std::int64_t step = 0;
  double unix_s = 0;
  enum class Kind : std::uint8_t {
    kBegin,
    kCheckpoint,
    kWarning,
    kSample,
    kBad,
    kEnd
  } kind = Kind::kBegin;
  std::string text;
};

// What the run's last attempt recorded at its begin, and what happened since the run began.
struct RunFacts {
  std::optional<std::int64_t> total_steps;
  std::optional<std::int64_t> ranks;
  std::string model;  // "gpt2, 124M parameters"
  std::string gpu;
  std::string cpu;
  std::vector<TierView> tiers;
  std::optional<double> planned_step_s;
  std::optional<double> planned_tokens_per_s;
  std::string bottleneck;                            // as planned
  std::vector<std::pair<std::string, double>> busy;  // by resource: its share of the planned step
  std::int64_t begins = 0;
  std::int64_t begin_step = 0;
  double begin_unix_s = 0;
  std::optional<RunPhase> end;
  std::string end_reason;
  double end_unix_s = 0;
  std::int64_t checkpoints = 0;
  std::int64_t failed_checkpoints = 0;
  std::int64_t warnings = 0;
  std::optional<std::int64_t> last_checkpoint;
  double last_checkpoint_unix_s = 0;
  std::optional<std::int64_t> last_attempt;  // the last attempt, saved or not
  std::int64_t eval_every = 0;               // from the configuration
  std::int64_t checkpoint_every = 0;
  std::vector<EventRow> events;  // the last ones, in file order
};

// Derives the facts from a run's events and configuration.
RunFacts facts_of(const report::RunRecord& record);

// One line of the metrics.
struct StepLine {
  std::int64_t step = 0;
  bool skipped = false;
  std::vector<double> values;  // by report::metric_columns(); not finite: unknown

  std::optional<double> value(std::string_view column) const;
};

struct RunView {
  std::string name;
  std::string path;
  RunPhase phase = RunPhase::kWaiting;
  RunFacts facts;
  std::optional<StepLine> last;
  std::optional<double> val_loss;  // the last one; below, the least
  std::optional<double> least_val_loss;
  std::optional<double> left_s;
  double since_last_s = 0;  // since the last line
  std::int64_t lines = 0;
  std::int64_t skipped = 0;
  std::int64_t not_finite = 0;

  // Means of the last steps.
  std::int64_t mean_of = 0;  // number of steps
  std::optional<double> tokens_per_s;
  std::optional<double> step_ms;
  std::array<double, 4> parts{};          // shares of the step's time, by kPartNames
  std::optional<double> nvme_read_bytes;  // per step
  std::optional<double> nvme_write_bytes;
  std::optional<double> h2d_bytes;
  std::optional<double> d2h_bytes;
  std::optional<double> gpu_utilization_percent;
  std::optional<double> gpu_power_watts;
  std::optional<double> gpu_throttled_percent;

  double written_bytes = 0;  // to the drives, over the whole run
  double read_bytes = 0;
  std::optional<double> written_a_day;  // at the current speed
  std::vector<TierView> tiers;
  std::vector<std::string> notices;
};

inline constexpr std::array<const char*, 4> kPartNames = {"forward", "backward", "update wait",
                                                          "other"};

}  // namespace sluice::watch
