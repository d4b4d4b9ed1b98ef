// make_backend: the backend that a configuration names, or the best one on this machine.
#pragma once

#include <memory>
#include <string_view>

#include "aio/io_backend.h"

namespace sluice::aio {

enum class BackendKind : std::uint8_t {
  kAuto,   // io_uring; if it is refused, POSIX threads, with a log line
  kUring,  // io_uring, or an error
  kPosix,
};

// "auto", "uring", "posix"; otherwise kInvalidArgument, which lists them.
Result<BackendKind> parse_backend_kind(std::string_view text);

struct BackendOptions {
  BackendKind kind = BackendKind::kAuto;
  int threads = 1;       // rings; the POSIX pool runs threads * queue_depth, at most its limit
  int queue_depth = 32;  // per ring
  bool single_submit = false;
};

Result<std::unique_ptr<IoBackend>> make_backend(const BackendOptions& options);

}  // namespace sluice::aio
