// UringBackend: io_uring with one thread per ring.
//
// Each ring thread sleeps in io_uring_enter, so that one system call submits what callbacks have
// queued and waits for the next completion. Attached files and memory are registered with every
// ring (files: no reference counting per operation; memory: no pinning of pages per operation).
// Features are probed at run time: SINGLE_ISSUER (Linux 6.0), COOP_TASKRUN and sparse tables
// (5.19); without them it runs more slowly.
//
// Threads: as for IoBackend, but attach() and detach() must not be called from a completion. A
//          single op submitted from a completion stays on that ring; batches are distributed
//          round-robin.
// Errors:  create() -> kUnsupported if the kernel or the container refuses io_uring; the error says
//          how.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "aio/io_backend.h"
#include "aio/real_file_system.h"

namespace sluice::aio {

class UringRing;

class UringBackend final : public IoBackend {
 public:
  struct Options {
    int threads = 1;             // rings, 1 .. kMaxThreads
    int queue_depth = 32;        // operations in the kernel per ring, 1 .. kMaxQueueDepth; more
                                 // wait in user space
    bool single_submit = false;  // one system call per operation instead of one per batch
  };
  static constexpr int kMaxThreads = 64;
  static constexpr int kMaxQueueDepth = 4096;
  static constexpr int kFileSlots = 256;     // further files are used unregistered
  static constexpr int kMemorySlots = 1024;  // pieces of at most 1 GiB; others are unregistered

  static Result<std::unique_ptr<UringBackend>> create(const Options& options);
  ~UringBackend() override;

  std::string_view name() const override { return "uring"; }
  FileSystem& files() override { return files_; }
  const Clock& clock() const override { return clock_; }
  void submit(std::span<IoOp* const> ops) noexcept override;
  void attach(File& file) override;
  void detach(File& file) override;
  bool attach_memory(std::span<std::byte> memory) override;
  void detach_memory(std::span<std::byte> memory) override;

 private:
  UringBackend() = default;
  bool register_piece(unsigned slot, std::span<std::byte> piece);

  RealFileSystem files_;
  SteadyClock clock_;
  std::vector<std::unique_ptr<UringRing>> rings_;
  std::atomic<unsigned> next_ring_{0};

  std::mutex tables_mutex_;  // guards the slots below, which are the same for all rings
  std::array<bool, kFileSlots> file_slot_used_{};
  std::array<std::span<std::byte>, kMemorySlots> memory_slots_{};  // empty: free
};

}  // namespace sluice::aio
