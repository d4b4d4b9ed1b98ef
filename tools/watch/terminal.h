// Terminal: the terminal of standard output, drawn on by ncurses, which sends only what has
// changed. It is as it was when the object ends, and when a signal that ends the process comes:
// those that are taken elsewhere (tools/support/interrupt.h) leave the end to the object's owner.
//
// One at a time.
//
// Threads: one.
// Errors:  kUnsupported: the terminal cannot move its cursor, or is not known (TERM).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "aio/result.h"
#include "tools/watch/frame.h"

namespace sluice::watch {

enum class Key : std::uint8_t { kUp, kDown, kTab, kBackTab, kResized };

struct KeyPress {
  char character = 0;  // of what is a character
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
  // Waits for so long at most.
  std::optional<KeyPress> read_key(int timeout_ms);

 private:
  Terminal() = default;

  bool with_colours_ = false;
};

// Whether standard output is a terminal, and standard input one, too.
bool has_terminal();
// Whether the locale's characters are Unicode's. Sets the process's LC_CTYPE by its environment, as
// wide characters need.
bool use_locale();

}  // namespace sluice::watch
