#include "tools/tune/tune_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace sluice::tools {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string rounded(double ratio) {
  std::string text = std::to_string(ratio);
  return text.substr(0, text.find('.') + 2);
}

}  // namespace

std::string describe(const std::vector<Dimension>& dimensions, const Point& point) {
  std::string text;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (point[i] == dimensions[i].start) continue;
    text += (text.empty() ? "" : ", ") + dimensions[i].name + " " +
            dimensions[i].choices[static_cast<std::size_t>(point[i])].label;
  }
  return text;
}

double Confirmation::gain() const {
  if (start_step_s.empty() || best_step_s.empty()) return 0;
  return median(start_step_s) / median(best_step_s);
}

Result<TuneResult> TuneSearch::run() {
  const Status searched = search();
  if (!searched.ok() && searched.error().code() == ErrorCode::kCancelled)
    result_.end = TuneEnd::kInterrupted;
  else if (!searched.ok())
    return searched.error();
  return std::move(result_);
}

Status TuneSearch::search() {
  const Point start = start_of(dimensions_);
  SLUICE_RETURN_IF_ERROR(look_ahead({start}));
  SLUICE_ASSIGN_OR_RETURN(const Outcome first, try_point(start));
  if (first == Outcome::kStop) return {};
  for (bool found = true; found;) {
    SLUICE_ASSIGN_OR_RETURN(found, pass());
  }
  return confirm();
}

// Returns whether it found something faster.
Result<bool> TuneSearch::pass() {
  std::vector<Point> all;
  for (std::size_t i = 0; i < dimensions_.size(); ++i)
    for (Point& point : neighbours(i)) all.push_back(std::move(point));
  SLUICE_RETURN_IF_ERROR(look_ahead(all));
  bool found = false;
  for (const std::size_t dimension : by_promise()) {
    if (!may_go_on()) return false;
    SLUICE_ASSIGN_OR_RETURN(const bool faster, walk(dimension));
    found = found || faster;
  }
  ++passes_;
  return found && may_go_on();
}

Result<bool> TuneSearch::walk(std::size_t dimension) {
  const std::vector<Point> points = neighbours(dimension);
  SLUICE_RETURN_IF_ERROR(look_ahead(points));
  std::vector<Point> order = points;
  std::stable_sort(order.begin(), order.end(), [&](const Point& a, const Point& b) {
    const auto predicted = [&](const Point& point) {
      const Forecast& forecast = forecasts_.at(point);
      return forecast.refusal.empty() ? forecast.step_s : std::numeric_limits<double>::infinity();
    };
    return predicted(a) < predicted(b);
  });
  if (dimensions_[dimension].ordered) {
    const int at = here()[dimension];
    for (const Point& point : order) {
      SLUICE_ASSIGN_OR_RETURN(const bool found,
                              walk_towards(dimension, point[dimension] > at ? 1 : -1));
      if (found) return true;
    }
    return false;
  }
  bool found = false;
  for (const Point& point : order) {
    if (is_hopeless(dimension, point[dimension])) continue;
    SLUICE_ASSIGN_OR_RETURN(const Outcome outcome, try_point(moved(dimension, point[dimension])));
    if (outcome == Outcome::kStop) break;
    found = found || outcome == Outcome::kFaster;
  }
  return found;
}

// Continues while choices get faster. It passes choices that are the same run, and, as long as no
// trial has run, choices that do not run either.
Result<bool> TuneSearch::walk_towards(std::size_t dimension, int direction) {
  bool found = false;
  const int end = static_cast<int>(dimensions_[dimension].choices.size());
  for (int choice = here()[dimension] + direction; choice >= 0 && choice < end;
       choice += direction) {
    if (is_hopeless(dimension, choice)) break;
    const Point point = moved(dimension, choice);
    SLUICE_RETURN_IF_ERROR(look_ahead({point}));
    SLUICE_ASSIGN_OR_RETURN(const Outcome outcome, try_point(point));
    found = found || outcome == Outcome::kFaster;
    const bool goes_on = outcome == Outcome::kFaster || outcome == Outcome::kSameRun ||
                         (outcome == Outcome::kFailed && !result_.best);
    if (!goes_on) break;
  }
  return found;
}

Result<TuneSearch::Outcome> TuneSearch::try_point(const Point& point) {
  if (const auto known = tried_.find(point); known != tried_.end())
    return known->second == Outcome::kFaster ? Outcome::kNotFaster : known->second;
  if (!may_go_on()) return Outcome::kStop;
  const Forecast& forecast = forecasts_.at(point);
  TuneRow row{.point = point, .forecast = forecast, .verdict = {}, .reason = {}, .trial = {}};
  if (!forecast.refusal.empty()) {
    row.verdict = result_.rows.empty() ? Verdict::kFailed : Verdict::kPruned;
    row.reason = forecast.refusal;
    add(std::move(row));
    return tried_[point] = Outcome::kFailed;
  }
  if (const auto same = runs_.find(forecast.run_id);
      !forecast.run_id.empty() && same != runs_.end()) {
    prune(std::move(row),
          "the same run as " + (same->second == 0 ? std::string("the start")
                                                  : "trial " + std::to_string(same->second + 1)));
    return tried_[point] = Outcome::kSameRun;
  }
  if (result_.best && forecast.step_s > 0) {
    const double best = result_.rows[*result_.best].forecast.step_s;
    if (best > 0 && forecast.step_s > kPruneRatio * best) {
      prune(std::move(row), "predicted to take " + rounded(forecast.step_s / best) +
                                " times as long as the best so far");
      return tried_[point] = Outcome::kNotFaster;
    }
  }
  return measure(std::move(row));
}

void TuneSearch::prune(TuneRow row, std::string reason) {
  row.verdict = Verdict::kPruned;
  row.reason = std::move(reason);
  add(std::move(row));
}

void TuneSearch::add(TuneRow row) {
  result_.rows.push_back(std::move(row));
  if (options_.on_row) options_.on_row(result_.rows.back(), result_.rows.size());
}

Result<TuneSearch::Outcome> TuneSearch::measure(TuneRow row) {
  ++trials_;
  SLUICE_ASSIGN_OR_RETURN(row.trial, subject_.measure(row.point, best_step_s()));
  const Point point = row.point;
  const std::size_t number = result_.rows.size();
  if (!row.forecast.run_id.empty()) runs_.emplace(row.forecast.run_id, number);
  const bool failed = !row.trial.measured();
  const bool faster = !failed && is_faster(row.trial);
  row.verdict = failed        ? Verdict::kFailed
                : number == 0 ? Verdict::kStart
                : faster      ? Verdict::kFaster
                              : Verdict::kNotFaster;
  row.reason = row.trial.failure;
  if (!failed) remember(point, row.trial);
  if (faster) result_.best = number;
  add(std::move(row));
  return tried_[point] = failed   ? Outcome::kFailed
                         : faster ? Outcome::kFaster
                                  : Outcome::kNotFaster;
}

double noise_s(const Trial& a, const Trial& b) {
  return 2 * std::sqrt(a.error_s * a.error_s + b.error_s * b.error_s);  // hypot: glibc 2.35
}

bool TuneSearch::is_faster(const Trial& trial) const {
  if (!result_.best) return true;
  const Trial& best = result_.rows[*result_.best].trial;
  return best.step_s - trial.step_s >
         std::max(options_.least_gain * best.step_s, noise_s(best, trial));
}

// The first pass tries every choice; later passes skip those that were far from the best.
bool TuneSearch::is_hopeless(std::size_t dimension, int choice) const {
  const auto known = ratios_.find({dimension, choice});
  return passes_ > 0 && known != ratios_.end() && known->second > kHopelessRatio;
}

void TuneSearch::remember(const Point& point, const Trial& trial) {
  if (!result_.best) return;
  const Point& best = here();
  for (std::size_t i = 0; i < point.size(); ++i)
    if (point[i] != best[i]) ratios_[{i, point[i]}] = trial.step_s / best_step_s();
}

// Measures alternately, so that drift (a drive's cache, a clock) affects both alike.
Status TuneSearch::confirm() {
  if (!result_.best || *result_.best == 0 || options_.confirmations == 0) return {};
  const bool start_runs =
      result_.start().trial.measured() && result_.start().forecast.refusal.empty();
  if (!start_runs) return {};
  Confirmation confirmation;
  for (int turn = 0; turn < options_.confirmations; ++turn) {
    for (const bool is_best : {false, true}) {
      const TuneRow& row = is_best ? result_.rows[*result_.best] : result_.start();
      if (subject_.seconds_left() < row.trial.took_s) break;
      SLUICE_ASSIGN_OR_RETURN(const Trial again, subject_.measure(row.point, 0));
      if (again.measured())
        (is_best ? confirmation.best_step_s : confirmation.start_step_s).push_back(again.step_s);
      else if (is_best && subject_.seconds_left() > 0)
        confirmation.failure = again.failure;
    }
  }
  result_.confirmation = std::move(confirmation);
  return {};
}

Status TuneSearch::look_ahead(const std::vector<Point>& points) {
  std::vector<Point> missing;
  for (const Point& point : points)
    if (forecasts_.find(point) == forecasts_.end()) missing.push_back(point);
  if (missing.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(std::vector<Forecast> found, subject_.forecast(missing));
  SLUICE_CHECK(found.size() == missing.size(), "a forecast for each point");
  for (std::size_t i = 0; i < missing.size(); ++i)
    forecasts_.emplace(missing[i], std::move(found[i]));
  return {};
}

// Reserves the time that the confirmation will need.
bool TuneSearch::may_go_on() {
  const auto stop = [&](TuneEnd end) {
    result_.end = end;
    return false;
  };
  if (trials_ >= options_.most_trials) return stop(TuneEnd::kTrialsUsed);
  double reserve_s = 0;
  if (result_.best) {
    const double took_s = result_.rows[*result_.best].trial.took_s;
    reserve_s = took_s * (*result_.best == 0 ? 1 : 1 + 2 * options_.confirmations);
  }
  if (subject_.seconds_left() <= reserve_s) return stop(TuneEnd::kTimeUsed);
  return true;
}

const Point& TuneSearch::here() const { return result_.rows[result_.best.value_or(0)].point; }

double TuneSearch::best_step_s() const {
  return result_.best ? result_.rows[*result_.best].trial.step_s : 0;
}

Point TuneSearch::moved(std::size_t dimension, int choice) const {
  Point point = here();
  point[dimension] = choice;
  return point;
}

std::vector<Point> TuneSearch::neighbours(std::size_t dimension) const {
  const int at = here()[dimension];
  const int end = static_cast<int>(dimensions_[dimension].choices.size());
  std::vector<Point> points;
  for (int choice = 0; choice < end; ++choice) {
    const bool is_near = !dimensions_[dimension].ordered || std::abs(choice - at) == 1;
    if (choice != at && is_near) points.push_back(moved(dimension, choice));
  }
  return points;
}

double TuneSearch::promise(std::size_t dimension) const {
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : neighbours(dimension)) {
    const Forecast& forecast = forecasts_.at(point);
    if (forecast.refusal.empty()) least = std::min(least, forecast.step_s);
  }
  return least;
}

std::vector<std::size_t> TuneSearch::by_promise() const {
  std::vector<std::size_t> order(dimensions_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<double> promises;
  promises.reserve(order.size());
  for (const std::size_t dimension : order) promises.push_back(promise(dimension));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return promises[a] < promises[b]; });
  return order;
}

}  // namespace sluice::tools
