#include "tools/support/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

namespace sluice::tools {
namespace {

// Signals are per process, and so is the thread that listens to them.
std::mutex listener_mutex;
const Interrupt* listener = nullptr;  // guarded by listener_mutex

// These ask for a save, and never end a process that is saving already.
constexpr std::array kWarnings = {SIGHUP, SIGUSR1, SIGUSR2};

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Applies the signal's default action.
void end_by(int number) {
  if (is_ignored(number)) return;
  sigset_t set{};
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  kill(getpid(), number);
  _exit(128 + number);  // process 1 of a container has no default actions
}

// Writes on a thread of its own, since the second signal must still be handled. Standard error may
// be a file on the very drive that does not answer, or a pipe that no process reads.
void say(const char* text) {
  if (text == nullptr) return;
  try {
    std::thread([text] {
      static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
    }).detach();
  } catch (const std::system_error&) {  // no thread available: the text is not printed
  }
}

void ignore(int number) {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  sigaction(number, &action, nullptr);
}

}  // namespace

SignalThread::SignalThread() {
  sigemptyset(&taken_);
  sigaddset(&taken_, SIGINT);
  sigaddset(&taken_, SIGTERM);
  for (const int number : kWarnings)
    if (!is_ignored(number)) sigaddset(&taken_, number);
  pthread_sigmask(SIG_BLOCK, &taken_, &old_mask_);
  thread_ = std::thread([this] { listen(); });
}

SignalThread::~SignalThread() {
  pthread_sigqueue(thread_.native_handle(), SIGTERM, {.sival_ptr = this});
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void SignalThread::listen() {
  for (;;) {
    siginfo_t info{};
    const int number = sigwaitinfo(&taken_, &info);
    if (number < 0) continue;  // EINTR, for example from a debugger
    if (info.si_code == SI_QUEUE && info.si_value.sival_ptr == this) return;  // from the destructor
    const std::lock_guard lock(listener_mutex);
    if (listener != nullptr)
      listener->on_signal(number);
    else
      end_by(number);
  }
}

Interrupt::Interrupt(const char* notice) : notice_(notice) {
  const std::lock_guard lock(listener_mutex);
  listener = this;
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(listener_mutex);
  listener = nullptr;
}

int Interrupt::take() {
  const std::lock_guard lock(listener_mutex);
  deliberate_ = 0;
  const int first = first_signal_.exchange(0);
  return std::exchange(terminated_, false) && first == SIGINT ? SIGTERM : first;
}

void Interrupt::on_signal(int number) const {
  const auto now = std::chrono::steady_clock::now();
  int none = 0;
  const bool is_first = first_signal_.compare_exchange_strong(none, number);
  if (!is_first && number == SIGTERM) terminated_ = true;
  if (is_first) {
    first_at_ = now;
    say(notice_);
  }
  const bool is_same = number == SIGTERM && now - first_at_ < kSameStop;
  const bool is_warning = std::find(kWarnings.begin(), kWarnings.end(), number) != kWarnings.end();
  const bool is_deliberate = !is_warning && (is_first || !is_same);
  if (is_deliberate && ++deliberate_ > 1) _exit(kInterruptedExitCode);
}

void stop_as_by_signal() {
  const std::lock_guard lock(listener_mutex);
  if (listener != nullptr)
    listener->on_signal(SIGHUP);
  else
    end_by(SIGTERM);
}

void fail_writes_beyond_limits() { ignore(SIGXFSZ); }

void fail_writes_without_reader() { ignore(SIGPIPE); }

sigset_t signals_ignored_here() {
  sigset_t set{};
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  sigaddset(&set, SIGPIPE);
  return set;
}

void nap_until(const Clock& clock, std::int64_t deadline_ns) {
  constexpr std::int64_t kLongestNs = 50'000'000;
  const std::int64_t left_ns = deadline_ns - clock.now_ns();
  if (left_ns > 0)
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kLongestNs)));
}

}  // namespace sluice::tools
