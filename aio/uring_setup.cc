#include "aio/uring_setup.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "aio/retry_policy.h"

namespace sluice::aio {
namespace {

Error unsupported(const Error& error) { return {ErrorCode::kUnsupported, error.message()}; }

Error set_up_refused(int error_number) {
  const std::string advice =
      error_number == EPERM || error_number == EACCES
          ? "the container's seccomp profile or the sysctl kernel.io_uring_disabled forbids it"
      : error_number == ENOSYS ? "this kernel has no io_uring"
      : error_number == ENOMEM ? "raise the memlock limit (ulimit -l)"
                               : "";
  return unsupported(Error::from_errno(error_number, {.operation = "set-up of io_uring"}, advice));
}

// Tries the best set of features first; every kernel since 5.6 accepts the last. DEFER_TASKRUN is
// not included: it wakes the thread for the first of several completions that arrive together,
// which cost 40% more CPU time at 4 KiB than COOP_TASKRUN (bench/history.md).
int set_up(io_uring& ring, unsigned entries) {
  constexpr unsigned kCoop = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  constexpr std::array<unsigned, 4> kFeatures = {
      IORING_SETUP_SUBMIT_ALL | kCoop | IORING_SETUP_SINGLE_ISSUER,  // Linux 6.0
      IORING_SETUP_SUBMIT_ALL | kCoop,                               // 5.19
      IORING_SETUP_SUBMIT_ALL,                                       // 5.18
      0};
  int result = -EINVAL;
  for (const unsigned features : kFeatures) {
    io_uring_params params{};
    params.flags = features | IORING_SETUP_CLAMP;
    result = io_uring_queue_init_params(entries, &ring, &params);
    if (result != -EINVAL) break;
  }
  return result;
}

Status try_a_nop(io_uring& ring) {
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  for (int failures = 0;; ++failures) {
    const int result = io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* done = nullptr;
    if (io_uring_peek_cqe(&ring, &done) == 0) {
      io_uring_cqe_seen(&ring, done);
      return {};
    }
    const int error_number = std::max(0, -result);
    const auto delay_ns = enter_retry_delay_ns(error_number, failures, kMaxEnterTriesAtStart);
    if (!delay_ns) return enter_refused(error_number);
    std::this_thread::sleep_for(std::chrono::nanoseconds(*delay_ns));
  }
}

}  // namespace

Error enter_refused(int error_number) {
  if (error_number == 0) {
    return {
        ErrorCode::kUnsupported,
        "io_uring_enter returns without doing anything: a sandbox answers instead of the kernel"};
  }
  const bool forbidden = error_number == EPERM || error_number == EACCES || error_number == ENOSYS;
  return unsupported(Error::from_errno(
      error_number, {.operation = "io_uring_enter"},
      forbidden ? "a seccomp profile allows rings to be created but forbids their use"
                : "it was refused repeatedly"));
}

Status set_up_ring(io_uring& ring, unsigned entries) {
  const int result = set_up(ring, entries);
  if (result < 0) return set_up_refused(-result);
  Status tried = try_a_nop(ring);
  if (!tried.ok()) io_uring_queue_exit(&ring);
  return tried;
}

}  // namespace sluice::aio
