// AioSession: everything one measured run needs: a backend, a queue, registered buffers and the
// open file. A new session is made for each block size, depth and thread count; the file stays.
//
// Memory:  threads * queue_depth buffers of one block.
// Errors:  errors of the parts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/io_target.h"
#include "aio/make_backend.h"
#include "aio/pinned_pool.h"

namespace sluice::bench {

// An existing file, or the files of an existing striped set, to be measured.
struct BenchTarget {
  std::vector<std::string> open_paths;  // may be /proc/self/fd/N, for a file without a name
  std::vector<std::string> shown_paths;
  std::uint64_t size_bytes = 0;
  std::uint64_t stripe_bytes = 1 << 20;
  std::vector<int> weights;
};

// Replaces /proc/self/fd/N in the error by the names that the user gave.
Error with_shown_paths(const Error& error, const BenchTarget& target);

class AioSession {
 public:
  struct Options {
    aio::BackendKind backend = aio::BackendKind::kAuto;
    std::uint64_t block_bytes = 1 << 20;
    int queue_depth = 32;  // per thread
    int threads = 1;
    bool single_submit = false;
    bool writable = false;

    int blocks_in_flight() const { return queue_depth * threads; }
    std::uint64_t bytes_in_flight() const {
      return block_bytes * static_cast<std::uint64_t>(blocks_in_flight());
    }
  };

  static Result<std::unique_ptr<AioSession>> open(const BenchTarget& target,
                                                  const Options& options);

  aio::IoQueue& queue() { return *queue_; }
  const aio::IoTarget& target() const { return *target_; }
  const Clock& clock() const { return backend_->clock(); }
  const Options& options() const { return options_; }
  // One per block in flight.
  std::span<const aio::PinnedPool::Lease> buffers() const { return buffers_; }
  Error shown(const Error& error) const { return with_shown_paths(error, described_); }
  std::string shown_path() const;

  std::string backend_name() const { return std::string(backend_->name()); }
  bool direct() const { return direct_; }
  bool registered() const { return pool_->usage().registered; }

 private:
  AioSession(BenchTarget described, const Options& options)
      : described_(std::move(described)), options_(options) {}

  // In the order of their dependencies; destroyed in reverse.
  const BenchTarget described_;
  const Options options_;
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::PinnedPool> pool_;
  std::vector<aio::PinnedPool::Lease> buffers_;
  std::unique_ptr<aio::IoTarget> target_;
  bool direct_ = false;
};

}  // namespace sluice::bench
