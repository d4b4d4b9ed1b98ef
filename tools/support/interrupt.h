// Interrupt: Ctrl-C and SIGTERM as a flag that long loops look at; the second one exits at once.
// The first says on standard error what it does.
//
// One object in main; its constructor installs the handlers, its destructor restores what was
// there. Threads: requested() from any.
#pragma once

#include <csignal>
#include <cstdint>

#include "aio/clock.h"

namespace sluice::tools {

inline constexpr int kInterruptedExitCode = 130;

class Interrupt {
 public:
  // `notice` must outlive it; null: nothing is said.
  explicit Interrupt(const char* notice = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const;

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

// Sleeps until the clock shows deadline_ns, at most 50 ms: callers loop, and look around between.
void nap_until(const Clock& clock, std::int64_t deadline_ns);

}  // namespace sluice::tools
