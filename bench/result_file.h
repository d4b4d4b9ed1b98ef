// ResultFile: a JSON file that appears whole or not at all.
//
// check() finds out, before the measurement begins, whether write() will be able to: the folder
// exists and is writable, and anything that already has the name is an earlier result of this
// program or empty, not some other file. Devices and pipes are written directly.
#pragma once

#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::bench {

class ResultFile {
 public:
  enum class Kind {
    kMeasurement,  // "version" and "machine" are among its keys
    kAioSection,   // "aio" is its only key: a whole configuration, which has more, is not ours
  };
  // option: for messages, "--json". "-" as path is standard output.
  ResultFile(std::string option, std::string path, Kind kind);

  Status check() const;
  // An earlier result that write() will replace: a sentence about it, else empty.
  std::string note() const;
  // To a temporary file beside it, which then takes its place.
  Status write(std::string_view text) const;

 private:
  std::string option_;
  std::string path_;
  std::string shown_path_;  // as typed
  Kind kind_;
};

}  // namespace sluice::bench
