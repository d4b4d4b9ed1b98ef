// Measurement: numbers, the subject that they depend on, and the time of their measurement. It is
// stored in a JSON file that a user can read:
//
//   {"format": "sluice-speeds", "version": 1, "measurements": [
//     {"what": "drives", "measured_at": "2026-03-01T12:00:00Z",
//      "of": {"paths": "ext4 on /dev/nvme0n1p1 at /nvme (259:1)", "queue depth": "32", ...},
//      "values": {"in_bytes_per_s": 6900000000.0, ...}}, ...]}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/probe/speed_values.h"

namespace sluice::engine {

// Everything that the numbers depend on, by name: machine, versions, settings.
using MeasuredOf = std::map<std::string, std::string>;

struct MeasuredKey {
  std::string what;
  MeasuredOf of;
};

struct Measurement {
  std::string what;  // "host", "drives", "gpu", "units"
  MeasuredOf of;
  std::int64_t measured_unix_s = 0;
  SpeedValues values;  // finite and not negative
};

std::string to_text(const std::vector<Measurement>& measurements);
// kCorrupt, or kNewerVersion, with a sentence, for text that to_text() did not write.
Result<std::vector<Measurement>> parse_measurements(std::string_view text);

// "2026-03-01T12:00:00Z", and its inverse; kCorrupt for other text.
std::string utc_text(std::int64_t unix_s);
Result<std::int64_t> parse_utc(const std::string& text);

}  // namespace sluice::engine
