// What to do with a transfer that came back incomplete: resume, try again after a while, or give
// up.
//
// EINTR and EAGAIN mean "not now". Errors that drives and their paths recover from (EIO after a
// reset link, ENOSPC while something is being deleted) and transfers of nothing get the same
// bounded number of tries, further apart. A failed sync is never repeated: the kernel may have
// dropped the pages it failed to write, and the second sync would lie (the lesson PostgreSQL taught
// in 2018).
#pragma once

#include <cstdint>
#include <optional>

#include "aio/io_backend.h"
#include "aio/result.h"

namespace sluice::aio {

enum class Verdict : std::uint8_t {
  kDone,
  kResume,     // it made progress: continue from there
  kRetry,      // the same again, after retry_delay_ns()
  kNextPhase,  // (IoQueue's own: the read of a read-modify-write is done)
  kFail,
};

struct Incomplete {
  IoKind kind;
  std::int64_t result;  // bytes, or -errno
  bool advanced;        // by a whole sector at least
  int retries;          // so far, since it last advanced
  int max_retries;
};
Verdict judge_incomplete(const Incomplete& transfer);

// Before try number `retries` + 1: 0 for the first after EINTR or EAGAIN, else doubling from 100 us
// to 100 ms.
std::int64_t retry_delay_ns(std::int64_t result, int retries);

// A ring whose io_uring_enter fails with EINTR, EAGAIN, EBUSY or ENOMEM, or does nothing (0), tries
// again: at most this many times consecutively (about 7 s), fewer while it is being made (51 ms).
inline constexpr int kMaxEnterTries = 20;
inline constexpr int kMaxEnterTriesAtStart = 10;

// How long to wait after `failures` earlier ones in a row, doubling from 100 us to 1 s; nothing:
// give up, since `max_tries` are used up, or the error would recur (EPERM, ENOSYS, ...).
std::optional<std::int64_t> enter_retry_delay_ns(int error_number, int failures, int max_tries);

// Whether io_uring_enter was only interrupted, which says nothing about the ring: EINTR from a call
// that had waited for a while. Stopping and continuing a process (SIGSTOP, a debugger) ends even
// the call of a thread that blocks all signals; a sandbox that answers in the kernel's place does
// so immediately.
bool is_interruption(int error_number, std::int64_t took_ns);

// The message for a transfer that is given up.
Error transfer_error(const IoOp& op, std::int64_t result, int retries);

}  // namespace sluice::aio
