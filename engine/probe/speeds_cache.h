// SpeedsCache: measurements that outlive the process, in one small JSON file (measurement.h).
//
// A measurement with the same machine and settings is reused for kMaxAgeDays; any difference
// requires a new one. A damaged or foreign file is ignored with a log line, and the first new
// measurement renames it. A file of a newer version stays, and nothing is cached. A cache that
// cannot be written only costs a log line and the next run's seconds.
//
// Disturbed measurements are not cached, except under a separate name for callers that ask for
// them.
//
// The file is written as a whole or not at all (aio/small_file.h), by one process at a time. While
// another process holds the lock next to the file, new measurements are not cached. Measurements
// that other processes added after this one read the file are kept.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_queue.h"
#include "engine/probe/measurement.h"

namespace sluice::engine {

class SpeedsCache {
 public:
  struct Options {
    std::string path;         // empty: no cache
    bool refresh = false;     // measure, regardless of the file
    std::int64_t unix_s = 0;  // the current time
    // How long a disturbed measurement may be used. It is for a series of processes that would
    // otherwise repeat it over and over; 0: never.
    std::int64_t disturbed_max_age_s = 0;
  };
  static constexpr std::int64_t kMaxAgeDays = 30;
  static constexpr std::size_t kMaxMeasurements = 200;  // the oldest are removed
  static constexpr std::uint64_t kMaxFileBytes = 1 << 20;

  // `queue` is used for the file's IO and must outlive the cache.
  SpeedsCache(aio::IoQueue& queue, Options options);

  template <typename Speeds>
  struct Found {
    Speeds speeds;
    std::int64_t measured_unix_s = 0;
    bool cached = false;
    std::string disturbance;  // not empty: other work used the machine
  };
  // Returns the values from the file, or else calls `measure`. If `disturbance` (may be empty) then
  // reports one, the values are cached only for callers that ask for disturbed ones. If the set of
  // values varies, `empty` has the wanted ones. Errors: those of `measure`.
  template <typename Speeds>
  Result<Found<Speeds>> get(const std::string& what, const MeasuredOf& of,
                            const std::function<Result<Speeds>()>& measure,
                            const std::function<std::string()>& disturbance = {},
                            const Speeds& empty = {}) {
    if (const Measurement* const known = find(what, of); known != nullptr) {
      if (const auto speeds = from_values<Speeds>(known->values, empty))
        return Found<Speeds>{*speeds, known->measured_unix_s, true, {}};
    }
    if (const Measurement* const known = find_disturbed(what, of); known != nullptr) {
      if (const auto speeds = from_values<Speeds>(known->values, empty))
        return Found<Speeds>{*speeds, known->measured_unix_s, true, "measured while busy"};
    }
    SLUICE_ASSIGN_OR_RETURN(const Speeds speeds, measure());
    std::string against = disturbance ? disturbance() : std::string();
    const bool disturbed = !against.empty();
    if (!disturbed || options_.disturbed_max_age_s > 0) {
      keep({.what = disturbed ? disturbed_name(what) : what,
            .of = of,
            .measured_unix_s = options_.unix_s,
            .values = values_of(speeds)});
    }
    return Found<Speeds>{speeds, options_.unix_s, false, std::move(against)};
  }

  // Removes wrong measurements, disturbed or not, so that they are repeated.
  Status forget(const std::vector<MeasuredKey>& keys);

  const Options& options() const { return options_; }

 private:
  static std::string disturbed_name(const std::string& what) { return what + ", disturbed"; }
  const Measurement* find(const std::string& what, const MeasuredOf& of) const;
  const Measurement* find_disturbed(const std::string& what, const MeasuredOf& of) const;
  void keep(Measurement measurement);
  Result<std::vector<Measurement>> read_file() const;
  std::vector<Measurement> read() const;
  Status set_unreadable_aside() const;
  using Edit = std::function<void(std::vector<Measurement>&)>;
  Status rewrite(const Edit& edit);
  bool too_old(const Measurement& measurement) const;
  bool fresh(const Measurement& measurement) const;

  aio::IoQueue& queue_;
  const Options options_;
  std::vector<Measurement> measurements_;
};

}  // namespace sluice::engine
