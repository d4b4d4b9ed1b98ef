// TrainSession: the steps of a run, and what the user sees and keeps of them: progress, metrics,
// evaluations, checkpoints. All at once, as `sluice train` has them, or one by one:
//
//   session.begin(); while (session.has_steps()) session.take_step(); session.finish(false);
//
// Threads: one. Errors: a step's are thrown (TrainError), all others are values.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/save_plan.h"
#include "engine/observe/metrics_log.h"
#include "engine/observe/run_totals.h"
#include "engine/observe/train_progress.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/training_run.h"
#include "tools/session/run_events.h"

namespace sluice::tools {

class TrainSession {
 public:
  using Stop = std::function<bool()>;  // whether the run is to end after the step

  // All must outlive it. `checkpoints`: null where none are wanted.
  struct Parts {
    engine::TrainingRun* run = nullptr;
    engine::MetricsLog* log = nullptr;
    engine::RunCheckpoints* checkpoints = nullptr;
    RunEvents* events = nullptr;
    std::ostream* says = nullptr;     // what was evaluated and saved
    std::ostream* results = nullptr;  // the profile that flops_profiler asks for
    bool shows_progress = true;       // as lines on standard error
    Stop stop;                        // asked once a step
    std::function<void(const engine::StepMetrics&)> after_step = {};
    int ranks = 1;
  };
  // `steps`: of the whole run, those before a resumed one included.
  TrainSession(const Parts& parts, const engine::SavePlan& saves, std::int64_t steps);

  enum class End : std::uint8_t {
    kCompleted,
    kInterrupted,  // after a step, which is saved if checkpoints are wanted, or before the first
  };
  // From the step after the run's position. A disk that is full, or has become read-only, and a
  // folder that is no longer there cost a checkpoint, and training continues; metrics that cannot
  // be written wait. See missing(). Every other error ends it.
  Result<End> train();

  // The parts of train().
  void begin();
  bool has_steps() const;
  // With its evaluation, and its checkpoint if one is due; returns whether it was told to stop.
  Result<bool> take_step();
  // Waits for what is still being written. `interrupted`: before has_steps() is false.
  Result<End> finish(bool interrupted);
  // Where checkpoints are wanted: of the last step, unless it has one.
  Status save_last();

  // Of the last step taken.
  const engine::StepMetrics& last() const { return last_; }

  // Sentences: what the run should have left on the disk but could not.
  std::vector<std::string> missing() const;
  // Whether steps were taken, and none of them changed the weights.
  bool applied_nothing() const;
  // After a failure: waits until a checkpoint that is being written is complete, which is then
  // reported.
  void finish_saves();
  // Before train(): what the plan predicts for a step.
  void compare_with_plan(double step_s) { totals_.compare_with_plan(step_s); }
  // Likewise: what large products reach on a rank's GPU, as measured.
  void compare_with_limit(double flops_per_s);
  bool far_from_plan() const { return totals_.far_from_plan(); }
  // Where the time went.
  void print_totals(std::ostream& out);

 private:
  void one_step(std::int64_t step);
  void report_metrics(const Status& written);
  void warn_if_nothing_is_learnt(const engine::StepMetrics& metrics);
  void report_flops(std::int64_t step, const engine::StepOutcome& outcome, std::int64_t took_ns);
  engine::StepMetrics metrics_of(std::int64_t step, const engine::StepOutcome& outcome,
                                 std::int64_t took_ns) const;
  bool evaluates_after(std::int64_t step) const;
  bool saves_after(std::int64_t step, bool interrupted) const;
  Status report_failure(const engine::SavedCheckpoint& saved);
  void compare_with_grace();
  Status save();
  Status report_saves();

  const Parts parts_;
  const std::int64_t steps_;
  engine::TrainProgress progress_;
  engine::RunTotals totals_;
  engine::RunCheckpoints::Scores scores_;
  engine::StepMetrics last_;
  std::int64_t saved_step_ = 0;    // or being saved
  const double flops_of_token_;    // of forward and backward
  double limit_flops_per_s_ = 0;   // of a rank; 0: unknown
  std::uint64_t tokens_seen_ = 0;  // of the whole run
  std::int64_t taken_steps_ = 0;   // by this process
  std::int64_t skipped_steps_ = 0;
  engine::SaveClock save_clock_;
  engine::StopNeeds stop_;
  std::optional<double> first_step_s_;
  int failed_saves_ = 0;
  std::string why_not_saved_;  // of the last save that failed
  bool metrics_wait_ = false;  // as far as reported to the user
  int calm_steps_ = 0;         // since a line had to wait
};

}  // namespace sluice::tools
