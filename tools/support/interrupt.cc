#include "tools/support/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace sluice::tools {
namespace {

// A signal handler can reach nothing but a global.
std::atomic<int> signals_seen{0};
std::atomic<const char*> notice_text{nullptr};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int /*number*/) {
  if (signals_seen.fetch_add(1) > 0) _exit(kInterruptedExitCode);
  const char* const text = notice_text.load();
  if (text == nullptr) return;
  const int error = errno;
  static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
  errno = error;
}

}  // namespace

Interrupt::Interrupt(const char* notice) {
  signals_seen = 0;
  notice_text = notice;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

bool Interrupt::requested() const { return signals_seen.load(std::memory_order_relaxed) > 0; }

void nap_until(const Clock& clock, std::int64_t deadline_ns) {
  constexpr std::int64_t kLongestNs = 50'000'000;
  const std::int64_t left_ns = deadline_ns - clock.now_ns();
  if (left_ns > 0)
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kLongestNs)));
}

}  // namespace sluice::tools
