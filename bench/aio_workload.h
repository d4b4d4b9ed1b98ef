// The work of aio_bench on a session: a measured run of a few seconds, and unmeasured passes over
// the whole file that fill or check it.
//
// Errors: kCancelled when an interrupt ended a pass; kCorrupt when a byte read is not the one
// written; otherwise those of the IO.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "aio/result.h"
#include "bench/aio_mode.h"
#include "bench/aio_session.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {

// Gets the fraction done and the speed so far.
using OnProgress = std::function<void(double fraction, double gb_per_s)>;

struct RunPlan {
  Mode mode = Mode::kRead;
  std::uint64_t range_bytes = 0;
  double seconds = 5;
  double ramp_seconds = 0.25;   // runs before the measured window and is not counted
  double patience_seconds = 0;  // how much longer the window stays open while a kind of
                                // transfer has not completed once
  std::optional<std::uint64_t> pattern_seed;  // as in LoopJob
  std::uint64_t random_seed = 1;
};

struct RunResult {
  Mode mode = Mode::kRead;
  double seconds = 0;  // actual length of the window
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t operations = 0;
  std::int64_t p50_ns = 0;
  std::int64_t p99_ns = 0;
  std::int64_t p999_ns = 0;
  double cpu_seconds = 0;  // user and system, of all threads, in the window
  bool interrupted = false;
  std::uint64_t issued_blocks = 0;  // in the sequential stream, including ramp and end
  std::uint64_t verified_bytes = 0;
  std::uint64_t retries = 0;  // includes short transfers that were resumed

  AioSession::Options shape;
  std::string backend;
  bool direct = false;
  bool registered = false;

  double read_gb_per_s() const { return rate(static_cast<double>(read_bytes) / 1e9); }
  double write_gb_per_s() const { return rate(static_cast<double>(written_bytes) / 1e9); }
  double gb_per_s() const { return read_gb_per_s() + write_gb_per_s(); }
  // Whether every kind of transfer in the mode completed at least once. Otherwise a rate of 0 would
  // be a claim about the drive.
  bool has_every_kind() const {
    return (mode == Mode::kWrite || read_bytes > 0) && (!writes(mode) || written_bytes > 0);
  }
  double iops() const { return rate(static_cast<double>(operations)); }
  double cpu_s_per_gb() const {
    const double gb = static_cast<double>(read_bytes + written_bytes) / 1e9;
    return gb > 0 ? cpu_seconds / gb : 0;
  }

 private:
  double rate(double amount) const { return seconds > 0 ? amount / seconds : 0; }
};

// Only transfers that complete inside the window count. Transfers in flight at its end are awaited
// and not counted. An interrupt closes the window early. If nothing or no transfer of one kind
// completed, has_every_kind() is false and nothing_completed() is the error to report.
Result<RunResult> run_measured(AioSession& session, const RunPlan& plan,
                               const tools::Interrupt& interrupt, const OnProgress& on_progress);

// Names --seconds and the shape, which the user can change.
Error nothing_completed(const RunResult& run, double seconds);

struct PassPlan {
  std::uint64_t range_bytes = 0;
  std::uint64_t first_block = 0;
  std::uint64_t pattern_seed = 1;
};
// Writes the pattern into the rest of the range from first_block on, and makes it durable.
Status write_pass(AioSession& session, const PassPlan& plan, const tools::Interrupt& interrupt,
                  const OnProgress& on_progress);
// Reads the pattern back and checks every byte. Returns the number of bytes.
Result<std::uint64_t> check_pass(AioSession& session, const PassPlan& plan,
                                 const tools::Interrupt& interrupt, const OnProgress& on_progress);

}  // namespace sluice::bench
