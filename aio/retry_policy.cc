#include "aio/retry_policy.h"

#include <algorithm>
#include <cerrno>
#include <string>

namespace sluice::aio {
namespace {

constexpr std::int64_t kFirstDelayNs = 100'000;
constexpr std::int64_t kMaxDelayNs = 100'000'000;
constexpr std::int64_t kMaxEnterDelayNs = 1'000'000'000;
constexpr std::int64_t kAtOnceNs = 1'000'000;  // a sandbox takes microseconds

bool is_not_now(int error_number) { return error_number == EINTR || error_number == EAGAIN; }

// Errors that may not recur on a second try; all others (EBADF, EINVAL, EROFS, ...) would.
bool may_pass(int error_number) {
  switch (error_number) {
    case EIO:
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EBUSY:
    case ENOBUFS:
    case ETIMEDOUT:
    case ENOLINK:
    case EREMOTEIO:
      return true;
    default:
      return is_not_now(error_number);
  }
}

}  // namespace

Verdict judge_incomplete(const Incomplete& transfer) {
  if (transfer.advanced) return Verdict::kResume;
  const bool again = transfer.retries < transfer.max_retries;
  if (transfer.result >= 0) return again ? Verdict::kRetry : Verdict::kFail;
  const int error_number = static_cast<int>(-transfer.result);
  const bool allowed =
      transfer.kind == IoKind::kSync ? is_not_now(error_number) : may_pass(error_number);
  return again && allowed ? Verdict::kRetry : Verdict::kFail;
}

std::int64_t retry_delay_ns(std::int64_t result, int retries) {
  if (retries == 0 && result < 0 && is_not_now(static_cast<int>(-result))) return 0;
  return std::min(kMaxDelayNs, kFirstDelayNs << std::min(retries, 20));
}

std::optional<std::int64_t> enter_retry_delay_ns(int error_number, int failures, int max_tries) {
  const bool passes = error_number == 0 || is_not_now(error_number) || error_number == EBUSY ||
                      error_number == ENOMEM;
  if (!passes || failures + 1 >= max_tries) return std::nullopt;
  return std::min(kMaxEnterDelayNs, kFirstDelayNs << std::min(failures, 20));
}

bool is_interruption(int error_number, std::int64_t took_ns) {
  return error_number == EINTR && took_ns >= kAtOnceNs;
}

Error transfer_error(const IoOp& op, std::int64_t result, int retries) {
  const std::string tries =
      retries > 0 ? " (given up after " + std::to_string(retries + 1) + " tries)" : "";
  const IoContext where{.operation = to_string(op.kind),
                        .path = op.file != nullptr ? std::string_view(op.file->path()) : "",
                        .offset_bytes = static_cast<std::int64_t>(op.offset_bytes),
                        .length_bytes = op.length_bytes};
  if (result < 0) {
    Error error = op.kind == IoKind::kSync
                      ? Error::from_errno(static_cast<int>(-result),
                                          {.operation = where.operation, .path = where.path},
                                          "data written since the last sync may be lost; check "
                                          "dmesg and the drive's health")
                      : Error::from_errno(static_cast<int>(-result), where);
    return std::move(error).with_suffix(tries);
  }
  // Repeatedly less than a sector of a direct file: the file ends inside the sector.
  const bool ended =
      op.kind == IoKind::kRead && op.file != nullptr && result < op.file->offset_alignment_bytes();
  return Error(ended ? ErrorCode::kEndOfFile : ErrorCode::kIo,
               std::string(where.operation) + " of " + std::to_string(where.length_bytes) +
                   " bytes at offset " + std::to_string(where.offset_bytes) + " in " +
                   std::string(where.path) +
                   (ended ? " reached the end of the file: something else truncated it"
                          : " made no progress") +
                   tries);
}

}  // namespace sluice::aio
