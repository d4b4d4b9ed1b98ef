// TrialRunner: plans and measures the points of a search. Each trial runs in a process of its own.
// Running out of memory, a crash or a hang is a result, and the GPU is empty again before the next
// trial.
//
// Plans are made in a child as well, so that this process never holds part of the GPU. Files that a
// killed trial left on the drives are removed.
//
// Threads: one.
// Errors:  kCancelled when interrupted; errors of starting a child.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aio/clock.h"
#include "aio/io_watchdog.h"
#include "engine/config/resolve.h"
#include "tools/cli/child_process.h"
#include "tools/support/interrupt.h"
#include "tools/tune/trial_messages.h"
#include "tools/tune/tune_search.h"

namespace sluice::tools {

class TrialRunner final : public TuneSubject {
 public:
  struct Options {
    std::vector<std::string> program;     // the child's command line
    int log = 2;                          // descriptor of a file for the children's output
    aio::IoWatchdog* watchdog = nullptr;  // for this process's own work
    int warmup = 1;
    int steps = 1;
    double trial_s = 0;   // limit of a trial; 0: derived from earlier trials
    double budget_s = 0;  // for everything since construction
    // Called at most ten times a second while a child works.
    std::function<void(std::string_view what, double trial_s)> on_wait;
  };
  // Both must outlive it.
  TrialRunner(const config::Sources& sources, const Interrupt& interrupt, Options options);

  // Plans the unchanged configuration.
  Result<TrialPlan> plan_start();
  // Must be called before the functions below; `dimensions` must outlive the runner.
  void set_dimensions(const std::vector<Dimension>& dimensions) { dimensions_ = &dimensions; }

  Result<std::vector<Forecast>> forecast(const std::vector<Point>& points) override;
  Result<Trial> measure(const Point& point, double best_step_s) override;
  double seconds_left() override;

  // The keys that the point sets in the configuration.
  Result<std::vector<KeyValue>> keys(const Point& point);

 private:
  struct Saying {
    std::vector<KeyValue> keys;
    std::string refusal;  // why it cannot be set; empty: it can
  };

  Result<Saying> saying(const Point& point);
  Result<TrialPlan> plan(const Point& point);
  Result<TrialPlan> ask_plan(const config::Config& config);
  Result<config::Config> config_with(const std::vector<KeyValue>& keys) const;
  Result<std::unique_ptr<ChildProcess>> start() const;
  Result<Trial> ask_trial(ChildProcess& child, const MeasureRequest& request);
  std::string how_it_was_lost(const ChildProcess& child, const Error& error,
                              std::int64_t log_begin) const;
  double trial_limit_s() const;
  double measured_limit_s(double best_step_s) const;
  double seconds_since(std::int64_t begin_ns) const;

  const config::Sources& sources_;
  const Interrupt& interrupt_;
  const Options options_;
  const SteadyClock clock_;
  const std::int64_t begin_ns_;
  const std::vector<Dimension>* dimensions_ = nullptr;
  std::map<Point, TrialPlan> plans_;
  std::map<std::string, TrialPlan> planned_;  // by configuration: several points may share one
  std::unique_ptr<ChildProcess> planner_;     // the child that makes plans
  double longest_trial_s_ = 0;                // completed trials only
};

}  // namespace sluice::tools
