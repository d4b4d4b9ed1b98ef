// SignalThread and Interrupt: Ctrl-C, SIGTERM, SIGHUP (a lost terminal or ssh connection), SIGUSR1
// and SIGUSR2 (a scheduler's warning: Slurm's --signal, submitit) as a flag that long loops read.
//
// A SignalThread is the first object of a program's main: it keeps these signals from every other
// thread and takes them on one of its own. So a second Ctrl-C ends the process even while all other
// threads wait in the kernel for a drive that does not answer.
//
//   first signal   With an Interrupt: requested() becomes true, and its notice goes to standard
//                  error. Without one: what the program would have done by itself, so it ends.
//   second one     With an Interrupt: the process ends at once, with kInterruptedExitCode. SIGHUP
//                  never counts as the second one: when a connection is lost, the kernel, the shell
//                  and the service manager may each send one, and a SIGTERM beside it. Nor does a
//                  SIGTERM within kSameStop of the first signal: launchers, their shells and
//                  Slurm pass one on, each by itself. SIGUSR1 and SIGUSR2 never count: they
//                  announce the SIGTERM that a scheduler sends while the save still runs.
//   SIGHUP,        stay ignored where they were ignored at the start, as SIGHUP is under nohup.
//   SIGUSR1 and 2
//
// One SignalThread, and at most one Interrupt at a time.
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

inline constexpr int kInterruptedExitCode = 130;  // a second signal, or nothing is saved
inline constexpr int kSavedExitCode = 75;         // EX_TEMPFAIL: saved, and to be continued
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
  // `notice` must live as long as the process; null: nothing is said.
  explicit Interrupt(const char* notice = nullptr);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return first_signal() != 0; }
  // The number of the one that came first, for who passes it on; 0: none has come.
  int first_signal() const { return first_signal_.load(std::memory_order_relaxed); }

 private:
  friend class SignalThread;
  friend void stop_as_by_signal();
  void on_signal(int number) const;  // under the listener's mutex

  // Most are const where they are made: what happens to them comes from outside.
  const char* const notice_;
  mutable std::atomic<int> first_signal_{0};
  mutable int deliberate_ = 0;  // SIGINT and SIGTERM so far
  mutable std::chrono::steady_clock::time_point first_at_;
};

// From any thread: as a first signal, and never as a second one.
void stop_as_by_signal();

// From here on a write beyond the limit of a file's size (ulimit -f) fails, as one on a full disk
// does, instead of ending the process by SIGXFSZ.
void fail_writes_beyond_limits();
// Likewise a write that no one reads any longer, instead of SIGPIPE: for what must end well though
// its terminal, or the `tee` after it, is gone.
void fail_writes_without_reader();
// What a child process must not inherit of all this, and the signals whose mask it must not
// inherit.
sigset_t signals_ignored_here();

// Sleeps until the clock shows deadline_ns, at most 50 ms: callers loop, and check for other things
// in between.
void nap_until(const Clock& clock, std::int64_t deadline_ns);

}  // namespace sluice::tools
