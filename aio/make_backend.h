// make_backend: the backend a configuration asks for, or the best this machine allows.
#pragma once

#include <memory>
#include <string_view>

#include "aio/io_backend.h"

namespace sluice::aio {

enum class BackendKind : std::uint8_t {
  kAuto,   // io_uring; where it is refused, POSIX threads, with a log line that says so
  kUring,  // or an error
  kPosix,
};

// "auto", "uring", "posix"; kInvalidArgument lists them.
Result<BackendKind> parse_backend_kind(std::string_view text);

struct BackendOptions {
  BackendKind kind = BackendKind::kAuto;
  int threads = 1;       // rings; the POSIX pool runs threads * queue_depth, at most its limit
  int queue_depth = 32;  // of each ring
  bool single_submit = false;
};

Result<std::unique_ptr<IoBackend>> make_backend(const BackendOptions& options);

}  // namespace sluice::aio
