// SpeedsCache: measurements that outlive the process, in one small JSON file (measurement.h).
//
// What was measured of the same machine in the same setting is not measured again for kMaxAgeDays;
// anything else about it makes a new measurement. A file that is damaged or of somebody else is
// left out of account with a log line, and set aside under another name by the first measurement;
// one of a newer version stays, and nothing is kept. A cache that cannot be written costs a log
// line and the next run's seconds, no more.
//
// Written whole or not at all (aio/small_file.h), by one process at a time: where another holds the
// lock beside the file, what was measured here is not kept. What another process added since this
// one read the file is kept.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
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
  };
  // From the file, else by `measure`. Errors: those of `measure`.
  template <typename Speeds>
  Result<Found<Speeds>> get(const std::string& what, const MeasuredOf& of,
                            const std::function<Result<Speeds>()>& measure) {
    if (const Measurement* const known = find(what, of); known != nullptr) {
      if (const auto speeds = from_values<Speeds>(known->values))
        return Found<Speeds>{*speeds, known->measured_unix_s, true};
    }
    SLUICE_ASSIGN_OR_RETURN(const Speeds speeds, measure());
    keep({.what = what, .of = of, .measured_unix_s = options_.unix_s, .values = values_of(speeds)});
    return Found<Speeds>{speeds, options_.unix_s, false};
  }

  const Options& options() const { return options_; }

 private:
  const Measurement* find(const std::string& what, const MeasuredOf& of) const;
  void keep(Measurement measurement);
  Result<std::vector<Measurement>> read_file() const;
  std::vector<Measurement> read() const;
  Status set_unreadable_aside() const;
  Status write(Measurement measurement);
  bool fresh(const Measurement& measurement) const;

  aio::IoQueue& queue_;
  const Options options_;
  std::vector<Measurement> measurements_;
};

}  // namespace sluice::engine
