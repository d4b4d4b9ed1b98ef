// QuietMeasurement: whether something else was using the machine while it was measured, and another
// try if so.
//
// It judges by what the kernel counts: how long this process's threads stood ready to run and had
// no core (/proc/self/task/*/schedstat), and for work that computes all the time, processor time
// against wall time; and by how far apart the passes of one measurement are (PassSpread), which
// shows what the processors do not: a drive or a GPU that others use now and then. Threads that
// wait for each other, because the run has more of them than cores, are not a disturbance: the run
// is measured as it will run.
//
// Threads: one. A thread that ends while it is measured takes its counts with it: make executors
// outside.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "aio/result.h"
#include "engine/probe/timed_passes.h"

namespace sluice::engine {

// Of this process so far.
struct CpuUse {
  std::int64_t wall_ns = 0;
  std::int64_t ran_ns = 0;                // by all threads together
  std::optional<std::int64_t> waited_ns;  // for a core; unset: the kernel does not say
};
CpuUse cpu_use();
using ReadCpuUse = std::function<CpuUse()>;

enum class MeasuredWork : std::uint8_t {
  kComputes,  // at least one thread, all the time
  kWaits,     // for drives or a GPU
};

// The share of their time that this many threads, all ready to run, wait for each other.
double own_wait_share(int threads, double cores);
std::string cores_text(double cores);  // "16", "1.50"
// A sentence that says that they do; empty where each has a core.
std::string crowding(int threads, double cores);

// Of the time in which the process could have run between the two, the share that others had.
// `own_wait` is the share in which its own threads waited for each other.
double lost_share(const CpuUse& before, const CpuUse& after, MeasuredWork work,
                  double own_wait = 0);

class QuietMeasurement {
 public:
  static constexpr double kMostLost = 0.25;  // a plan should be right within 0.7 and 1.4
  static constexpr double kMostSpread = 3;
  static constexpr int kMostTries = 3;

  struct Options {
    MeasuredWork work = MeasuredWork::kWaits;
    double own_wait = 0;  // lost_share()
    // For tests: a made-up process (empty: this one), and passes that may be spread.
    ReadCpuUse read = {};
    double most_spread = kMostSpread;
  };
  explicit QuietMeasurement(Options options)
      : options_(std::move(options)), read_(options_.read ? options_.read : cpu_use) {}

  // For the passes that `measure` makes.
  PassSpread* spread() { return &spread_; }

  // Measures until the machine was quiet, at most kMostTries times, and stops where trying again
  // does not help. Returns the try that lost least.
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

  // What disturbed the measurement that is used: a clause; empty where nothing did.
  std::string disturbance() const;

 private:
  static constexpr double kWorthAnotherTry = 0.8;

  struct Disturbance {
    double lost_share = 0;
    double spread = 0;  // over what is tolerable
    // 1: just tolerable.
    double badness() const { return std::max(lost_share / kMostLost, spread); }
  };

  const Options options_;
  const ReadCpuUse read_;
  PassSpread spread_;
  Disturbance disturbance_;
};

}  // namespace sluice::engine
