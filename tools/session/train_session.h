// TrainSession: takes the steps of a run, with progress, metrics, evaluations and checkpoints.
// Either all at once, as `sluice train` does, or one by one:
//
//   session.begin(); while (session.has_steps()) session.take_step(); session.finish(false);
//
// Threads: one. Errors: a step throws TrainError; all other errors are values.
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
#include "engine/run/evaluation_history.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/training_run.h"
#include "tools/session/run_events.h"
#include "tools/session/sample_text.h"

namespace sluice::tools {

class TrainSession {
 public:
  using Stop = std::function<bool()>;  // whether the run ends after this step

  // All must outlive the session. `checkpoints`: null for a run without checkpoints.
  struct Parts {
    engine::TrainingRun* run = nullptr;
    engine::MetricsLog* log = nullptr;
    engine::RunCheckpoints* checkpoints = nullptr;
    RunEvents* events = nullptr;
    std::ostream* notices = nullptr;  // messages about evaluations and saves
    std::ostream* results = nullptr;  // the profile that flops_profiler asks for
    bool shows_progress = true;       // as lines on standard error
    Stop stop;                        // called once per step
    std::function<void(const engine::StepMetrics&)> after_step = {};
    std::optional<engine::StoredEvaluations> evaluations = {};  // before a resume
    MakeSamples make_samples = {};                              // empty: no sample texts
    int ranks = 1;
  };
  // `steps`: of the whole run, including those before a resume.
  TrainSession(const Parts& parts, const engine::SavePlan& saves, std::int64_t steps);

  enum class End : std::uint8_t {
    kCompleted,
    kInterrupted,  // after a step, which is saved if the run has checkpoints, or before the first
  };
  // Runs from the step after the run's position. If the disk is full or read-only, or the folder
  // has disappeared, a checkpoint is lost and training continues; metrics that cannot be written
  // wait. missing() lists the losses. Every other error ends training.
  Result<End> train();

  // The parts of train().
  void begin();
  bool has_steps() const;  // false also if the run stops early: early_stopping.patience
  // Takes a step, with its evaluation and its checkpoint if one is due. Returns whether the run has
  // to stop.
  Result<bool> take_step();
  // Waits for pending writes. `interrupted`: has_steps() is still true.
  Result<End> finish(bool interrupted);
  // Saves the last step unless it is already saved, if the run has checkpoints.
  Status save_last();

  // Metrics of the last step taken.
  const engine::StepMetrics& last() const { return last_; }

  // Sentences about files that the run should have written but could not.
  std::vector<std::string> missing() const;
  // Whether steps were taken and none of them changed the weights.
  bool applied_nothing() const;
  // After a failure: waits until a pending checkpoint is complete, and reports it.
  void finish_saves();
  // Call before train(): the step time that the plan predicts.
  void compare_with_plan(double step_s) { totals_.compare_with_plan(step_s); }
  // Call before train(): the measured speed of large products on a rank's GPU.
  void compare_with_limit(double flops_per_s);
  bool far_from_plan() const { return totals_.far_from_plan(); }
  // Prints where the time went.
  void print_totals(std::ostream& out);

 private:
  void one_step(std::int64_t step);
  void report_metrics(const Status& written);
  void warn_if_nothing_is_learnt(const engine::StepMetrics& metrics);
  void report_flops(std::int64_t step, const engine::StepOutcome& outcome, std::int64_t took_ns);
  engine::StepMetrics metrics_of(std::int64_t step, const engine::StepOutcome& outcome,
                                 std::int64_t took_ns) const;
  bool evaluates_after(std::int64_t step) const;
  void evaluate(engine::StepMetrics& metrics);
  void report_early_stop();
  void make_samples(std::int64_t step);
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
  engine::EvaluationHistory evaluations_;
  bool is_lowest_ = false;  // the last step's validation loss, of all so far
  const bool keeps_best_;
  const bool saves_at_end_;
  engine::StepMetrics last_;
  std::int64_t saved_step_ = 0;    // saved, or being saved
  const double flops_of_token_;    // forward and backward
  double limit_flops_per_s_ = 0;   // per rank; 0: unknown
  std::uint64_t tokens_seen_ = 0;  // over the whole run
  std::int64_t taken_steps_ = 0;   // by this process
  std::int64_t skipped_steps_ = 0;
  engine::SaveClock save_clock_;
  engine::StopNeeds stop_;
  std::optional<double> first_step_s_;
  int failed_saves_ = 0;
  std::string why_not_saved_;  // the last failed save
  bool metrics_wait_ = false;  // as last reported to the user
  int calm_steps_ = 0;         // since a line last had to wait
};

}  // namespace sluice::tools
