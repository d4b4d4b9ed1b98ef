// Terminal: draws on the terminal of standard output with ncurses, which sends only what has
// changed. The terminal is restored when the object is destroyed, and when a signal ends the
// process. For signals that are handled elsewhere (tools/support/interrupt.h) the object's owner
// does this.
//
// There is at most one Terminal at a time.
//
// Threads: one.
// Errors:  kUnsupported: the terminal cannot move its cursor, or is unknown (TERM).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "aio/result.h"
#include "tools/watch/frame.h"

namespace sluice::watch {

enum class Key : std::uint8_t { kUp, kDown, kTab, kBackTab, kResized };

struct KeyPress {
  char character = 0;  // if the key is a character
  std::optional<Key> key;
};

class Terminal {
 public:
  static Result<std::unique_ptr<Terminal>> open(bool with_colours);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int rows() const;
  int columns() const;
  void show(const Frame& frame);
  // Waits for at most `timeout_ms`.
  std::optional<KeyPress> read_key(int timeout_ms);

 private:
  Terminal() = default;

  bool with_colours_ = false;
};

// Whether both standard output and standard input are terminals.
bool has_terminal();
// Whether the locale uses Unicode. Sets the process's LC_CTYPE from its environment, which wide
// characters require.
bool use_locale();

}  // namespace sluice::watch
