// TuneSearch: from the plan's own choice to the fastest measured one, by coordinate descent.
//
// The start is measured first. Then its neighbours are tried, dimension by dimension, beginning
// with the dimension that the plan predicts to gain most. If a neighbour is faster by more than the
// noise, the search continues in that direction. Passes over all dimensions end when one finds
// nothing, or when the time or the number of trials is used up. Later passes skip choices that were
// much slower in an earlier one. A point is not measured if the plan says that it does not fit or
// if it is the same run as an earlier point. The same holds if it is predicted to be slower than
// the best by kPruneRatio. It is still a row of the result, as is a trial that fails. At the end
// the start and the best are measured again alternately, so that their ratio compares measurements
// taken at the same time.
//
// Threads: one.
// Errors:  errors of the subject, which end the search; a trial that fails is a result.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "tools/tune/search_space.h"

namespace sluice::tools {

struct Forecast {
  double step_s = 0;    // 0: unknown
  std::string refusal;  // why it cannot run; empty: it can
  std::string run_id;   // points with the same ID are the same run; empty: unknown
};

struct Trial {
  std::string failure;  // empty: measured
  double step_s = 0;    // median
  double error_s = 0;   // standard error of the median
  double tokens_per_s = 0;
  std::uint64_t gpu_bytes = 0;   // peak; 0: no GPU
  std::uint64_t host_bytes = 0;  // peak resident memory
  double took_s = 0;             // total, including failed parts

  bool measured() const { return failure.empty(); }
};

// The difference of two steps' times that may be noise.
double noise_s(const Trial& a, const Trial& b);

// The subject of a search.
class TuneSubject {
 public:
  virtual ~TuneSubject() = default;
  // Returns one forecast per point.
  virtual Result<std::vector<Forecast>> forecast(const std::vector<Point>& points) = 0;
  // kCancelled: the user stopped it. `best_step_s`: lets a hopeless trial end early; 0: no best
  // yet.
  virtual Result<Trial> measure(const Point& point, double best_step_s) = 0;
  virtual double seconds_left() = 0;
};

enum class Verdict : std::uint8_t { kStart, kFaster, kNotFaster, kFailed, kPruned };

struct TuneRow {
  Point point;
  Forecast forecast;
  Verdict verdict = Verdict::kPruned;
  std::string reason;  // for kFailed and kPruned
  Trial trial;         // for all other verdicts
};

enum class TuneEnd : std::uint8_t { kNothingFaster, kTimeUsed, kTrialsUsed, kInterrupted };

// The alternating measurements at the end.
struct Confirmation {
  std::vector<double> start_step_s;
  std::vector<double> best_step_s;
  std::string failure;  // why the best did not run again, if it did not
  double gain() const;  // in speed: 1.2 is a fifth faster; 0 unless both were measured
};

struct TuneResult {
  std::vector<TuneRow> rows;        // the start first, then in the order of the search
  std::optional<std::size_t> best;  // index in `rows`; nullopt: no trial ran
  TuneEnd end = TuneEnd::kNothingFaster;
  std::optional<Confirmation> confirmation;  // if the best is not the start, and time was left

  const TuneRow& start() const { return rows.front(); }
};

class TuneSearch {
 public:
  static constexpr double kPruneRatio = 1.3;
  static constexpr double kHopelessRatio = 1.15;  // applies to measured times

  struct Options {
    double least_gain = 0.02;  // least gain of "faster", unless the measured noise is larger
    int most_trials = 60;      // without the confirmation
    int confirmations = 2;     // for the start and for the best each; 0: none
    std::function<void(const TuneRow& row, std::size_t number)> on_row = {};  // counted from 1
  };
  // All arguments must outlive it.
  TuneSearch(const std::vector<Dimension>& dimensions, TuneSubject& subject, const Options& options)
      : dimensions_(dimensions), subject_(subject), options_(options) {}

  Result<TuneResult> run();

 private:
  enum class Outcome : std::uint8_t { kFaster, kNotFaster, kFailed, kSameRun, kStop };

  Status search();
  Result<bool> pass();
  Result<bool> walk(std::size_t dimension);
  Result<bool> walk_towards(std::size_t dimension, int direction);
  Result<Outcome> try_point(const Point& point);
  Result<Outcome> measure(TuneRow row);
  Status confirm();
  Status look_ahead(const std::vector<Point>& points);
  void prune(TuneRow row, std::string reason);
  void add(TuneRow row);

  Point moved(std::size_t dimension, int choice) const;
  std::vector<Point> neighbours(std::size_t dimension) const;
  std::vector<std::size_t> by_promise() const;
  double promise(std::size_t dimension) const;  // the least predicted step time in this dimension
  bool is_faster(const Trial& trial) const;
  bool is_hopeless(std::size_t dimension, int choice) const;
  void remember(const Point& point, const Trial& trial);
  bool may_go_on();
  const Point& here() const;
  double best_step_s() const;  // 0: none yet

  const std::vector<Dimension>& dimensions_;
  TuneSubject& subject_;
  const Options options_;
  std::map<Point, Forecast> forecasts_;
  std::map<Point, Outcome> tried_;
  std::map<std::string, std::size_t> runs_;  // by run_id: index of the row that measured it
  // By dimension and choice: the ratio to the best at that time, if they differed only in that
  // choice.
  std::map<std::pair<std::size_t, int>, double> ratios_;
  TuneResult result_;
  int trials_ = 0;
  int passes_ = 0;
};

}  // namespace sluice::tools
