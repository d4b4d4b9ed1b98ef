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
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "aio/result.h"
#include "engine/probe/timed_passes.h"

namespace sluice::engine {

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
      const bool better = !best || now.badness() < disturbance_.badness();
      const bool much_better = !best || now.badness() < kWorthAnotherTry * disturbance_.badness();
      if (better) {
        best = std::move(speeds);
        disturbance_ = now;
      }
      if (disturbance_.badness() <= 1 || !much_better) break;
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
    double badness() const { return std::max(lost_share / kMostLost, spread); }
  };

  const Options options_;
  const ReadCpuUse read_;
  PassSpread spread_;
  Disturbance disturbance_;
};

}  // namespace sluice::engine
