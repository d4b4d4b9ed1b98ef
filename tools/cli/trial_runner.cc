#include "tools/cli/trial_runner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/config/config.h"
#include "engine/observe/text_table.h"
#include "swap/store_inventory.h"
#include "tools/session/open_queue.h"
#include "tools/tune/tune_dimensions.h"
#include "tools/tune/tune_report.h"

namespace sluice::tools {
namespace {

// Removes what a killed run left on the NVMe paths of `config`, and nothing else, as every run does
// when it begins (swap/store_inventory.h). A failure is only a warning.
void remove_leftovers(const config::Config& config, aio::IoWatchdog& watchdog) {
  std::set<std::string> named;
  for (const auto& of_tier : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    named.insert(of_tier.begin(), of_tier.end());
  if (named.empty()) return;
  const std::vector<std::string> paths(named.begin(), named.end());
  const auto files = open_queue(watchdog);
  const Status removed =
      files.ok() ? swap::remove_leftovers(*files->queue, paths).status() : files.status();
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound)
    log::warning("a trial's files could not be removed: " + removed.error().message());
}

// Time for a child to finish its step and to remove its files on the drives.
constexpr double kPatienceS = 10;
// A trial that takes this much longer than the longest completed one is stuck.
constexpr double kStuckRatio = 3;
constexpr double kStuckExtraS = 60;
constexpr double kHalfAsSlowAgain = 1.5;

std::int64_t size_of(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 ? static_cast<std::int64_t>(status.st_size) : 0;
}

// The last non-empty line written after `begin`.
std::string last_line(int descriptor, std::int64_t begin) {
  std::array<char, 4096> end{};
  const std::int64_t size = size_of(descriptor);
  const std::int64_t from = std::max(begin, size - static_cast<std::int64_t>(end.size()));
  const ssize_t count = pread(descriptor, end.data(), end.size(), from);
  std::string text(end.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

TrialPlan unplanned(const std::string& why) {
  return {.forecast = {.refusal = "its plan failed: " + why, .run_id = {}}, .facts = {}};
}

bool starts_with(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

}  // namespace

TrialRunner::TrialRunner(const config::Sources& sources, const Interrupt& interrupt,
                         Options options)
    : sources_(sources),
      interrupt_(interrupt),
      options_(std::move(options)),
      begin_ns_(clock_.now_ns()) {}

double TrialRunner::seconds_since(std::int64_t begin_ns) const {
  return static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9;
}

double TrialRunner::seconds_left() { return options_.budget_s - seconds_since(begin_ns_); }

// Gives trials a folder of their own: a run of the user's may be in progress in the other one.
Result<config::Config> TrialRunner::config_with(const std::vector<KeyValue>& keys) const {
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved,
                          config::resolve(with_changes(sources_, keys)));
  config::Config config = resolved.config;
  config.run.dir = "tune-" + std::to_string(getpid());
  return config;
}

Result<std::unique_ptr<ChildProcess>> TrialRunner::start() const {
  return ChildProcess::start(options_.program, {.output = options_.log, .own_group = true});
}

Result<TrialPlan> TrialRunner::ask_plan(const config::Config& config) {
  const std::string text = config::to_json(config);
  if (const auto known = planned_.find(text); known != planned_.end()) return known->second;
  if (!planner_) {
    SLUICE_ASSIGN_OR_RETURN(planner_, start());
  }
  const std::int64_t log_begin = size_of(options_.log);
  const std::int64_t begin_ns = clock_.now_ns();
  const auto line = planner_->ask(to_line(PlanRequest{text}), [&] {
    options_.on_wait("planning", seconds_since(begin_ns));
    return !interrupt_.requested() && seconds_left() > 0;
  });
  if (line.ok()) {
    auto made = parse_plan(*line);
    return planned_[text] = made.ok() ? *made : unplanned(made.error().message());
  }
  const bool out_of_time = line.error().code() == ErrorCode::kCancelled;
  const std::string lost =
      out_of_time ? "the time is used up" : how_it_was_lost(*planner_, line.error(), log_begin);
  planner_->stop(kPatienceS);
  planner_.reset();
  if (interrupt_.requested()) return line.error();
  // One configuration that cannot be planned does not end the search.
  return unplanned(lost);
}

Result<TrialPlan> TrialRunner::plan_start() {
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, config_with({}));
  return ask_plan(config);
}

Result<TrialPlan> TrialRunner::plan(const Point& point) {
  if (const auto known = plans_.find(point); known != plans_.end()) return known->second;
  SLUICE_ASSIGN_OR_RETURN(Saying said, saying(point));
  TrialPlan made;
  if (!said.refusal.empty()) {
    made.forecast.refusal = said.refusal;
  } else {
    // The drives' speeds are cached for the user's settings, and take seconds to measure for
    // others. Trials measure those better.
    std::string drives;
    std::vector<KeyValue> planned;
    for (KeyValue& one : said.keys) {
      if (starts_with(one.key, "aio."))
        drives += " " + one.key + "=" + one.json;
      else
        planned.push_back(std::move(one));
    }
    auto config = config_with(planned);
    if (config.ok()) {
      SLUICE_ASSIGN_OR_RETURN(made, ask_plan(*config));
      if (!made.forecast.run_id.empty()) made.forecast.run_id += drives;
    } else {
      made.forecast.refusal = config.error().message();
    }
  }
  return plans_[point] = made;
}

Result<std::vector<Forecast>> TrialRunner::forecast(const std::vector<Point>& points) {
  std::vector<Forecast> forecasts;
  for (const Point& point : points) {
    SLUICE_ASSIGN_OR_RETURN(const TrialPlan made, plan(point));
    forecasts.push_back(made.forecast);
  }
  planner_.reset();
  return forecasts;
}

Result<TrialRunner::Saying> TrialRunner::saying(const Point& point) {
  Saying said;
  Point unshifted = point;
  for (std::size_t i = 0; i < point.size(); ++i) {
    const Dimension& dimension = (*dimensions_)[i];
    const Choice& choice = dimension.choices[static_cast<std::size_t>(point[i])];
    if (dimension.shifts != Shift::kNone) unshifted[i] = dimension.start;
    said.keys.insert(said.keys.end(), choice.keys.begin(), choice.keys.end());
  }
  if (unshifted == point) return said;
  SLUICE_ASSIGN_OR_RETURN(const TrialPlan rest, plan(unshifted));
  said.refusal = rest.forecast.refusal;
  config::TierFractions fractions{.gpu = rest.facts.gpu_fraction,
                                  .cpu = rest.facts.cpu_fraction,
                                  .nvme = rest.facts.nvme_fraction};
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, config_with({}));
  const bool has_drives = !config.optimizer_nvme_paths().empty();
  for (std::size_t i = 0; i < point.size(); ++i) {
    const Dimension& dimension = (*dimensions_)[i];
    if (point[i] == unshifted[i]) continue;
    const auto moved =
        shifted(fractions, dimension.shifts,
                dimension.choices[static_cast<std::size_t>(point[i])].shift, has_drives);
    if (!moved) said.refusal = "there is no such state to move";
    fractions = moved.value_or(fractions);
  }
  said.keys.push_back(fractions_key(fractions));
  return said;
}

Result<std::vector<KeyValue>> TrialRunner::keys(const Point& point) {
  SLUICE_ASSIGN_OR_RETURN(Saying said, saying(point));
  planner_.reset();
  return std::move(said.keys);
}

double TrialRunner::trial_limit_s() const {
  if (options_.trial_s > 0) return options_.trial_s;
  return longest_trial_s_ > 0 ? kStuckRatio * longest_trial_s_ + kStuckExtraS : options_.budget_s;
}

// A configuration that is half as slow again need not be measured exactly, and long steps vary
// little.
double TrialRunner::measured_limit_s(double best_step_s) const {
  constexpr double kLongEnoughS = 30;
  const double long_s = std::max(kLongEnoughS, kHalfAsSlowAgain * best_step_s);
  return best_step_s > 0 ? std::min(long_s, kHalfAsSlowAgain * best_step_s * options_.steps)
                         : long_s;
}

Result<Trial> TrialRunner::measure(const Point& point, double best_step_s) {
  planner_.reset();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<KeyValue> said, keys(point));
  SLUICE_ASSIGN_OR_RETURN(const config::Config config, config_with(said));
  const MeasureRequest request{.config = config::to_json(config),
                               .warmup = options_.warmup,
                               .steps = options_.steps,
                               .seconds = measured_limit_s(best_step_s)};
  const std::int64_t begin_ns = clock_.now_ns();
  SLUICE_ASSIGN_OR_RETURN(const auto child, start());
  auto trial = ask_trial(*child, request);
  // Also after an answer: the child removes its files on the drives when it ends.
  child->stop(kPatienceS);
  remove_leftovers(config, *options_.watchdog);
  if (!trial.ok()) return trial;
  trial->took_s = seconds_since(begin_ns);
  if (trial->measured()) longest_trial_s_ = std::max(longest_trial_s_, trial->took_s);
  return trial;
}

Result<Trial> TrialRunner::ask_trial(ChildProcess& child, const MeasureRequest& request) {
  const std::int64_t log_begin = size_of(options_.log);
  const std::int64_t begin_ns = clock_.now_ns();
  const double limit_s = trial_limit_s();
  const auto line = child.ask(to_line(request), [&] {
    options_.on_wait({}, seconds_since(begin_ns));
    return !interrupt_.requested() && seconds_left() > 0 && seconds_since(begin_ns) < limit_s;
  });
  if (line.ok()) {
    auto trial = parse_trial(*line);
    return trial.ok() ? *std::move(trial) : Trial{.failure = trial.error().message()};
  }
  if (interrupt_.requested()) return Error(ErrorCode::kCancelled, "interrupted");
  if (line.error().code() != ErrorCode::kCancelled)
    return Trial{.failure = how_it_was_lost(child, line.error(), log_begin)};
  if (seconds_left() <= 0) return Trial{.failure = "stopped: the time of the search was used up"};
  return Trial{.failure = "stopped after " + engine::duration(seconds_since(begin_ns)) +
                          ": it took too long (--trial-seconds)"};
}

std::string TrialRunner::how_it_was_lost(const ChildProcess& child, const Error& error,
                                         std::int64_t log_begin) const {
  if (child.ending().empty()) return error.message();  // still running, but its answer is invalid
  const std::string said = last_line(options_.log, log_begin);
  const std::string text = "it ended " + child.ending();
  return said.empty() ? text : text + "; its last output: " + said;
}

}  // namespace sluice::tools
