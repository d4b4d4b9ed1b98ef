// SignalThread and Interrupt: Ctrl-C, SIGTERM, SIGHUP (a lost terminal or ssh connection), SIGUSR1
// and SIGUSR2 (a scheduler's warning: Slurm's --signal, submitit) as a flag that long loops read.
//
// A SignalThread is the first object of a program's main: it blocks these signals in every other
// thread and handles them on one of its own. So a second Ctrl-C ends the process even while all
// other threads wait in the kernel for a drive that does not answer.
//
//   first signal   With an Interrupt: requested() becomes true, and its notice goes to standard
//                  error. Without one: the signal's default action, so the process ends.
//   second one     With an Interrupt: the process ends at once, with kInterruptedExitCode. SIGHUP
//                  never counts as the second one: when a connection is lost, the kernel, the shell
//                  and the service manager may each send one, together with a SIGTERM. Nor does a
//                  SIGTERM within kSameStop of the first signal: launchers, their shells and
//                  Slurm each pass one on. SIGUSR1 and SIGUSR2 never count: they announce
//                  the SIGTERM that a scheduler sends while the save still runs.
//   SIGHUP,        stay ignored if they were ignored at the start, like SIGHUP under nohup.
//   SIGUSR1 and 2
//
// There is one SignalThread, and at most one Interrupt at a time.
//
// Threads: requested() and first_signal() from any.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <thread>

#include "aio/clock.h"

namespace sluice::tools {

inline constexpr int kInterruptedExitCode = 130;  // second signal, or nothing was saved
inline constexpr int kSavedExitCode = 75;         // EX_TEMPFAIL: saved, and can be continued
inline constexpr std::chrono::seconds kSameStop(5);

class SignalThread {
 public:
  SignalThread();
  ~SignalThread();  // restores the calling thread's mask
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void listen();

  sigset_t taken_{};
  sigset_t old_mask_{};
  std::thread thread_;
};

class Interrupt {
 public:
  // `notice` must live as long as the process; null: prints nothing.
  explicit Interrupt(const char* notice = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return first_signal() != 0; }
  // The number of the first signal, to be passed on; 0: none yet.
  int first_signal() const { return first_signal_.load(std::memory_order_relaxed); }
  // Returns first_signal() and forgets it: the next signal is a first one again.
  int take();

 private:
  friend class SignalThread;
  friend void stop_as_by_signal();
  void on_signal(int number) const;  // under the listener's mutex

  // Mutable because most Interrupts are const objects, and signals change them from outside.
  const char* const notice_;
  mutable std::atomic<int> first_signal_{0};
  mutable int deliberate_ = 0;       // SIGINT and SIGTERM so far
  mutable bool terminated_ = false;  // SIGTERM after the first signal
  mutable std::chrono::steady_clock::time_point first_at_;
};

// From any thread: acts like a first signal, and never like a second one.
void stop_as_by_signal();

// From here on a write beyond the file size limit (ulimit -f) fails like one on a full disk,
// instead of ending the process with SIGXFSZ.
void fail_writes_beyond_limits();
// From here on a write without a reader fails, instead of ending the process with SIGPIPE. For
// programs that must end well though their terminal, or the `tee` after them, is gone.
void fail_writes_without_reader();
// The ignored signals that a child process must not inherit; it must not inherit their mask either.
sigset_t signals_ignored_here();

// Sleeps until the clock shows deadline_ns, but at most 50 ms: callers loop and check other
// conditions in between.
void nap_until(const Clock& clock, std::int64_t deadline_ns);

}  // namespace sluice::tools
