// The time of one pass of repeatable work: one pass to warm up, then passes until the time is over.
// The result is their median, which an interruption does not change. QuietMeasurement repeats a
// measurement that other work disturbed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/clock.h"
#include "aio/result.h"

namespace sluice::engine {

inline double median_of(std::vector<double> values) {
  SLUICE_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The spread of a measurement's passes: the largest ratio of a third quartile to a first.
class PassSpread {
 public:
  void add(std::vector<double> passes) {
    if (passes.size() < kLeast) return;
    std::sort(passes.begin(), passes.end());
    const double first = passes[passes.size() / 4];
    const double third = passes[passes.size() - 1 - passes.size() / 4];
    if (first > 0) worst_ = std::max(worst_, third / first);
  }
  double worst() const { return worst_; }

 private:
  static constexpr std::size_t kLeast = 4;  // fewer passes have no quartiles
  double worst_ = 1;
};

// At least three passes, and at most kMostPasses, whatever `seconds` is. `spread` may be null.
inline double median_pass_seconds(const Clock& clock, double seconds,
                                  const std::function<void()>& pass, PassSpread* spread = nullptr) {
  constexpr std::size_t kLeastPasses = 3;
  constexpr std::size_t kMostPasses = 100'000;
  pass();
  std::vector<double> passes;
  const std::int64_t begin_ns = clock.now_ns();
  std::int64_t last_ns = begin_ns;
  while (
      passes.size() < kMostPasses &&
      (passes.size() < kLeastPasses || 1e-9 * static_cast<double>(last_ns - begin_ns) < seconds)) {
    pass();
    const std::int64_t now_ns = clock.now_ns();
    passes.push_back(1e-9 * static_cast<double>(now_ns - last_ns));
    last_ns = now_ns;
  }
  if (spread != nullptr) spread->add(passes);
  return median_of(std::move(passes));
}

// For two rows of copies that ran at the same time: when the first row has ended, the other row has
// the bus to itself, so its later copies must not count.
// `ends_s`: the end of each copy of a row, ascending, in seconds since the common beginning.
// Returns the number of copies done at `at_s`, with the fraction of the one in progress.
inline double copies_done(std::span<const double> ends_s, double at_s) {
  double begin_s = 0;
  for (std::size_t i = 0; i < ends_s.size(); ++i) {
    if (ends_s[i] > at_s) return static_cast<double>(i) + (at_s - begin_s) / (ends_s[i] - begin_s);
    begin_s = ends_s[i];
  }
  return static_cast<double>(ends_s.size());
}

// Totals of this process since its start.
struct CpuUse {
  std::int64_t wall_ns = 0;
  std::int64_t ran_ns = 0;                // sum over all threads
  std::optional<std::int64_t> waited_ns;  // for a core; unset: not reported by the kernel
};
CpuUse cpu_use();
using ReadCpuUse = std::function<CpuUse()>;

enum class MeasuredWork : std::uint8_t {
  kComputes,  // at least one thread computes all the time
  kWaits,     // for drives or a GPU
};

// The fraction of their time in which `threads` ready threads wait for each other.
double own_wait_share(int threads, double cores);
std::string cores_text(double cores);  // "16", "1.50"
// A sentence that says that threads wait for each other; empty if each has a core.
std::string crowding(int threads, double cores);

// The fraction of the time between `before` and `after` that other work took from this process.
// `own_wait`: the fraction in which its own threads waited for each other.
double lost_share(const CpuUse& before, const CpuUse& after, MeasuredWork work,
                  double own_wait = 0);

// QuietMeasurement: detects whether other work used the machine during a measurement, and repeats
// the measurement if so.
//
// It uses the kernel's counter of the time for which this process's threads were ready but had no
// core (/proc/self/task/*/schedstat). For work that computes all the time, it also compares
// processor time with wall time. The spread between the passes of one measurement (PassSpread)
// reveals what the processors do not: a drive or a GPU that others use now and then. Threads that
// wait for each other, because the run has more threads than cores, are not a disturbance: the run
// is measured as it will run.
//
// Threads: one. The counters of a thread that ends during the measurement are lost, so make
//          executors outside.
class QuietMeasurement {
 public:
  static constexpr double kMostLost = 0.25;  // a plan should be accurate within 0.7 and 1.4
  static constexpr double kMostSpread = 3;
  static constexpr int kMostTries = 3;

  struct Options {
    MeasuredWork work = MeasuredWork::kWaits;
    double own_wait = 0;  // see lost_share()
    // For tests: a simulated process (empty: this one), and a tolerance for the spread of passes.
    ReadCpuUse read = {};
    double most_spread = kMostSpread;
  };
  explicit QuietMeasurement(Options options)
      : options_(std::move(options)), read_(options_.read ? options_.read : cpu_use) {}

  // `measure` records its passes here.
  PassSpread* spread() { return &spread_; }

  // Measures until the machine was quiet, at most kMostTries times, and stops if another try does
  // not help. Returns the try that lost least.
  template <typename Speeds>
  Result<Speeds> measure(const std::function<Result<Speeds>()>& measure) {
    std::optional<Speeds> best;
    for (int tries = 0; tries < kMostTries; ++tries) {
      spread_ = {};
      const CpuUse before = read_();
      SLUICE_ASSIGN_OR_RETURN(Speeds speeds, measure());
      const Disturbance now{
          .lost_share = lost_share(before, read_(), options_.work, options_.own_wait),
          .spread = spread_.worst() / options_.most_spread};
      const bool better = !best || now.excess() < disturbance_.excess();
      const bool much_better = !best || now.excess() < kWorthAnotherTry * disturbance_.excess();
      if (better) {
        best = std::move(speeds);
        disturbance_ = now;
      }
      if (disturbance_.excess() <= 1 || !much_better) break;
    }
    return std::move(*best);
  }

  // A clause about the disturbance of the returned measurement; empty if there was none.
  std::string disturbance() const;

 private:
  static constexpr double kWorthAnotherTry = 0.8;

  struct Disturbance {
    double lost_share = 0;
    double spread = 0;  // relative to the tolerable spread
    // 1: just tolerable.
    double excess() const { return std::max(lost_share / kMostLost, spread); }
  };

  const Options options_;
  const ReadCpuUse read_;
  PassSpread spread_;
  Disturbance disturbance_;
};

}  // namespace sluice::engine
