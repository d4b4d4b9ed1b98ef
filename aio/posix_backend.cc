#include "aio/posix_backend.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>

#include "aio/io_thread.h"

namespace sluice::aio {
namespace {

std::int64_t transfer(const IoOp& op) {
  std::int64_t result = 0;
  switch (op.kind) {
    case IoKind::kRead:
      result = ::pread(op.file->descriptor(), op.data, op.length_bytes,
                       static_cast<off_t>(op.offset_bytes));
      break;
    case IoKind::kWrite:
      result = ::pwrite(op.file->descriptor(), op.data, op.length_bytes,
                        static_cast<off_t>(op.offset_bytes));
      break;
    case IoKind::kSync:
      result = ::fdatasync(op.file->descriptor());
      break;
    case IoKind::kNop:
      break;
  }
  return result < 0 ? -errno : result;
}

}  // namespace

Result<std::unique_ptr<PosixBackend>> PosixBackend::create(const Options& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return Error(ErrorCode::kInvalidArgument, "the POSIX backend takes 1 to " +
                                                  std::to_string(kMaxThreads) + " threads, not " +
                                                  std::to_string(options.threads));
  }
  std::unique_ptr<PosixBackend> backend(new PosixBackend);
  const SignalsBlocked signals_blocked;
  try {
    for (int i = 0; i < options.threads; ++i) {
      backend->threads_.emplace_back([pool = backend.get()] {
        name_this_thread(kPosixThread);
        pool->work();
      });
    }
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOutOfMemory, "could not start " + std::to_string(options.threads) +
                                              " IO threads (" + error.what() +
                                              "): raise ulimit -u, or use fewer");
  }
  return backend;
}

PosixBackend::~PosixBackend() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void PosixBackend::submit(std::span<IoOp* const> ops) noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (IoOp* op : ops) {
      op->next = nullptr;
      (first_ == nullptr ? first_ : last_->next) = op;
      last_ = op;
    }
  }
  if (ops.size() == 1) {
    work_ready_.notify_one();
  } else {
    work_ready_.notify_all();
  }
}

void PosixBackend::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [this] { return first_ != nullptr || stopping_; });
    if (first_ == nullptr) return;  // stopping, and every submitted op has been taken
    IoOp* op = first_;
    first_ = op->next;
    lock.unlock();
    if (op->delay_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(op->delay_ns));
    op->on_done(*op, transfer(*op));
    lock.lock();
  }
}

}  // namespace sluice::aio
