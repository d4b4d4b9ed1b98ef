// FileFollower: follows a file of lines that another program appends to, and delivers each line
// when it is complete.
//
// The file may be missing at first, and its last line may be half-written. It may be renamed to
// FILE.1 and begun anew (the previous FILE.1 becomes FILE.2, and so on). If it is cut, overwritten
// or replaced, restart() is called and all lines are delivered again.
//
// Each poll opens the file briefly for reading and does nothing else to it.
//
// Memory:  one line, at most report::kMostLineBytes, and a block.
// Threads: one.
// Errors:  name the file. Lines read before an error stay, and the next poll tries again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "aio/result.h"
#include "tools/report/text_lines.h"

namespace sluice::watch {

class FileFollower {
 public:
  struct Sink {
    std::function<void()> restart;  // everything read so far is invalid
    std::function<void(const report::TextLine&)> line;
  };
  FileFollower(std::string path, Sink sink);

  Status poll();

  // Whether the last poll found a line that is not complete.
  bool has_torn_end() const { return lines_.has_begun(); }
  std::int64_t too_long_lines() const { return lines_.too_long(); }  // since the last restart

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  class OpenFile;

  bool continues(const OpenFile& file) const;
  Status read_rest(const OpenFile& file);
  Status read_part(const std::string& part);
  void begin_anew();

  std::string path_;
  Sink sink_;
  report::LineSplitter lines_;
  std::optional<Identity> identity_;  // the file that was read last
  std::int64_t offset_bytes_ = 0;     // position of the next unread byte
  std::string before_;                // the last bytes before that position
  bool has_read_ = false;             // whether anything was read since the last restart
};

}  // namespace sluice::watch
