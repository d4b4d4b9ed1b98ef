// What to do with an incomplete transfer: resume, retry after a delay, or give up.
//
// EINTR and EAGAIN mean "not now". Zero-byte transfers, and errors that drives and their links
// recover from (EIO after a link reset, ENOSPC during deletions), get the same bounded number of
// retries, further apart. A failed sync is never repeated: the kernel may have dropped the pages
// that it failed to write, and a second sync would falsely succeed (PostgreSQL found this in 2018).
#pragma once

#include <cstdint>
#include <optional>

#include "aio/io_backend.h"
#include "aio/result.h"

namespace sluice::aio {

enum class Verdict : std::uint8_t {
  kDone,
  kResume,     // it made progress: continue from that point
  kRetry,      // repeat it after retry_delay_ns()
  kNextPhase,  // (only IoQueue: the read of a read-modify-write is done)
  kFail,
};

struct Incomplete {
  IoKind kind;
  std::int64_t result;  // bytes, or -errno
  bool advanced;        // by at least one sector
  int retries;          // since it last advanced
  int max_retries;
};
Verdict judge_incomplete(const Incomplete& transfer);

// The delay before try number `retries` + 1: 0 for the first after EINTR or EAGAIN, else doubling
// from 100 us to 100 ms.
std::int64_t retry_delay_ns(std::int64_t result, int retries);

// If io_uring_enter fails with EINTR, EAGAIN, EBUSY or ENOMEM, or does nothing (0), the ring tries
// again. It makes at most this many consecutive tries (about 7 s), and fewer during creation (51
// ms).
inline constexpr int kMaxEnterTries = 20;
inline constexpr int kMaxEnterTriesAtStart = 10;

// The delay after `failures` consecutive failures, doubling from 100 us to 1 s. Empty: give up,
// because `max_tries` are used up, or the error would recur (EPERM, ENOSYS, ...).
std::optional<std::int64_t> enter_retry_delay_ns(int error_number, int failures, int max_tries);

// Whether io_uring_enter was only interrupted, which says nothing about the ring: EINTR from a call
// that had waited for a while. Stopping and continuing a process (SIGSTOP, a debugger) interrupts
// even a thread that blocks all signals. A sandbox that answers in the kernel's place returns EINTR
// immediately.
bool is_interruption(int error_number, std::int64_t took_ns);

// The message for a transfer after the last retry.
Error transfer_error(const IoOp& op, std::int64_t result, int retries);

}  // namespace sluice::aio
