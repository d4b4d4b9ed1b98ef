// PosixBackend: a pool of threads with pread and pwrite, for machines that refuse io_uring or where
// it is not wanted.
//
// A blocking call holds its thread, so the number of threads is the queue depth of the drive.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aio/io_backend.h"
#include "aio/real_file_system.h"

namespace sluice::aio {

class PosixBackend final : public IoBackend {
 public:
  struct Options {
    int threads = 32;  // 1 .. kMaxThreads
  };
  static constexpr int kMaxThreads = 256;

  // kInvalidArgument: count out of range; kOutOfMemory: threads cannot be started.
  static Result<std::unique_ptr<PosixBackend>> create(const Options& options);
  ~PosixBackend() override;

  std::string_view name() const override { return "posix"; }
  FileSystem& files() override { return files_; }
  const Clock& clock() const override { return clock_; }
  void submit(std::span<IoOp* const> ops) noexcept override;

 private:
  PosixBackend() = default;
  void work();

  RealFileSystem files_;
  SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable work_ready_;
  IoOp* first_ = nullptr;  // waiting ops, oldest first; guarded by mutex_
  IoOp* last_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::aio
