#include "aio/make_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "aio/log.h"
#include "aio/posix_backend.h"
#include "aio/uring_backend.h"

namespace sluice::aio {
namespace {

Result<std::unique_ptr<IoBackend>> make_posix(const BackendOptions& options) {
  const int wanted = options.threads * options.queue_depth;
  const int threads = std::min(wanted, PosixBackend::kMaxThreads);
  if (threads < wanted) {
    log::info_once("posix-depth", "the POSIX backend runs " + std::to_string(threads) +
                                      " threads, so the drive's queue depth is that instead of " +
                                      std::to_string(wanted));
  }
  SLUICE_ASSIGN_OR_RETURN(auto backend, PosixBackend::create({.threads = threads}));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

Result<std::unique_ptr<IoBackend>> make_uring(const BackendOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(auto backend,
                          UringBackend::create({.threads = options.threads,
                                                .queue_depth = options.queue_depth,
                                                .single_submit = options.single_submit}));
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace

Result<BackendKind> parse_backend_kind(std::string_view text) {
  if (text == "auto") return BackendKind::kAuto;
  if (text == "uring") return BackendKind::kUring;
  if (text == "posix") return BackendKind::kPosix;
  return Error(ErrorCode::kInvalidArgument,
               "\"" + std::string(text) + "\" is not an IO backend: choose auto, uring or posix");
}

Result<std::unique_ptr<IoBackend>> make_backend(const BackendOptions& options) {
  if (options.threads < 1 || options.threads > UringBackend::kMaxThreads) {
    return Error(ErrorCode::kInvalidArgument, "IO threads must be 1 to " +
                                                  std::to_string(UringBackend::kMaxThreads) +
                                                  ", not " + std::to_string(options.threads));
  }
  if (options.queue_depth < 1 || options.queue_depth > UringBackend::kMaxQueueDepth) {
    return Error(ErrorCode::kInvalidArgument, "the queue depth must be 1 to " +
                                                  std::to_string(UringBackend::kMaxQueueDepth) +
                                                  ", not " + std::to_string(options.queue_depth));
  }
  if (options.kind == BackendKind::kPosix) return make_posix(options);
  auto uring = make_uring(options);
  if (uring.ok() || uring.error().code() != ErrorCode::kUnsupported) return uring;
  if (options.kind == BackendKind::kUring) {
    return std::move(uring).error().with_suffix(
        "; the backends auto and posix work without io_uring");
  }
  log::info_once("no-uring", uring.error().message() + "; POSIX threads are used instead");
  return make_posix(options);
}

}  // namespace sluice::aio
