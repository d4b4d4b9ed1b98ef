// SpeedsCache: measurements that outlive the process, in one small JSON file (measurement.h).
//
// What was measured on the same machine in the same setting is not measured again for kMaxAgeDays;
// any difference makes a new measurement. A file that is damaged or not ours is disregarded with a
// log line, and set aside under another name by the first measurement; one of a newer version
// stays, and nothing is kept. A cache that cannot be written costs a log line and the next run's
// seconds, no more.
//
// What was measured while something else was using the machine is not kept, except under a name of
// its own for callers that ask for that.
//
// Written whole or not at all (aio/small_file.h), by one process at a time: where another process
// holds the lock beside the file, what was measured here is not kept. What another process added
// since this one read the file is kept.
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
    std::string path;         // empty: nothing is kept
    bool refresh = false;     // measure, whatever the file says
    std::int64_t unix_s = 0;  // now
    // What was measured while something else was using the machine is good enough for this long,
    // for a series of processes that would otherwise measure it over and over; 0: it never is.
    std::int64_t disturbed_max_age_s = 0;
  };
  static constexpr std::int64_t kMaxAgeDays = 30;
  static constexpr std::size_t kMaxMeasurements = 200;  // the oldest go
  static constexpr std::uint64_t kMaxFileBytes = 1 << 20;

  // `queue` moves the file's bytes and must outlive the cache.
  SpeedsCache(aio::IoQueue& queue, Options options);

  template <typename Speeds>
  struct Found {
    Speeds speeds;
    std::int64_t measured_unix_s = 0;
    bool cached = false;
    std::string disturbance;  // not empty: something else was using the machine
  };
  // From the file, else by `measure`. If `disturbance` (may be empty) then objects to the
  // measurement, it is kept only for callers that ask for such. `empty` has the values that are
  // wanted, where these vary. Errors: those of `measure`.
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

  // So that they are measured again: what turned out to be wrong, whether disturbed or not.
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
