// ResultFile: a JSON file that appears whole or not at all.
//
// check() finds out before the measurement whether write() will succeed. The folder must exist and
// be writable, and an existing file of that name must be empty or an earlier result of this
// program. Devices and pipes are written directly.
#pragma once

#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::bench {

class ResultFile {
 public:
  enum class Kind {
    kMeasurement,  // "version" and "machine" are among its keys
    kAioSection,   // "aio" is the only key: a full configuration, which has more, is refused
  };
  // option: for messages, "--json". The path "-" is standard output.
  ResultFile(std::string option, std::string path, Kind kind);

  Status check() const;
  // A sentence about an earlier result that write() will replace; else empty.
  std::string note() const;
  // Writes a temporary file next to it and renames that.
  Status write(std::string_view text) const;

 private:
  std::string option_;
  std::string path_;
  std::string shown_path_;  // as typed
  Kind kind_;
};

// Whether a recording's trace can be written there; called before anything is measured. The name
// must be free, and the folder must exist and be writable.
Status check_trace_file(const std::string& path);

}  // namespace sluice::bench
