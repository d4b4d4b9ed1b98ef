// FileFollower: a file of lines that another program adds to, line by line as they are completed.
//
// What may happen to it meanwhile: it is not there yet; its last line is half-written; it is
// renamed to FILE.1 and begun anew (what was there before to FILE.2, and so on); it is cut,
// overwritten or replaced: then restart() is called, and everything comes again.
//
// The file is opened for reading, briefly, at each poll, and nothing else.
//
// Memory:  one line, at most report::kMostLineBytes, and a block.
// Threads: one.
// Errors:  name the file. What was read before stays, and the next poll tries again.
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
    std::function<void()> restart;  // what was read so far does not hold any longer
    std::function<void(const report::TextLine&)> line;
  };
  FileFollower(std::string path, Sink sink);

  Status poll();

  // Of the last poll: whether a line is there whose end is missing.
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
  std::optional<Identity> identity_;  // of the file that was read last
  std::int64_t offset_bytes_ = 0;     // of what comes next in it
  std::string before_;                // the last bytes before that
  bool has_read_ = false;             // anything, since the last restart
};

}  // namespace sluice::watch
