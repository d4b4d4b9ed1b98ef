// EventsFile: a run's events.jsonl as the report page shows it: known events of a bounded number
// and size, each as JSON. If the run has several lives, only the last `begin` keeps its
// configuration and tiers; `changes` lists what changed from one life to the next.
//
// Memory: kMostOfAKind events of each kind, of at most kMostEventBytes each (a `begin`:
//         kMostBeginBytes), and the last kMostLatest events.
// Errors: only if the file cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::report {

struct EventsFile {
  static constexpr std::size_t kMostOfAKind = 500;
  static constexpr std::size_t kMostEventBytes = std::size_t{8} << 10;
  static constexpr std::size_t kMostBeginBytes = std::size_t{128} << 10;

  static constexpr std::size_t kMostLatest = 100;

  std::vector<std::string> events;  // JSON objects, in the order of the file
  std::vector<std::string> latest;  // the last events, including those that `events` leaves out
  std::int64_t left_out = 0;        // beyond kMostOfAKind
  std::int64_t bad_lines = 0;
  bool has_torn_end = false;
};

Result<EventsFile> read_events_file(const std::string& path);

}  // namespace sluice::report
