// ParamStorage: what ParamOffloader allocates once: memory for the cpu units, buffers for the nvme
// ones, and the store of their records.
//
// Memory:  exactly plan(). Both pieces of memory are mapped, touched, locked and registered once.
// Threads: create() and remove() alone; everything else from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "offload/params/param_layout.h"
#include "swap/state_store.h"

namespace sluice::offload {

struct ParamOptions {
  std::vector<ParamUnit> units;
  int element_bytes = 2;            // 4 in fp32 mode
  int cache_buffers = 3;            // per size class, at least 2
  int read_ahead = 2;               // units per size class, if there are enough buffers
  swap::StateStore::Options store;  // for nvme units: paths and run; chunk_bytes is set here
  bool huge_pages = true;
  aio::MemoryLock lock = aio::MemoryLock::kTry;
  aio::PinHook hook;  // gets the memory of the cpu units, and that of all buffers
};

struct ParamEnvironment {
  aio::IoQueue* reads = nullptr;   // needed for nvme units
  aio::IoQueue* writes = nullptr;  // needed for nvme units; may be the same
  // Computes and checks checksums, and touches memory in create(); used by nothing else meanwhile.
  // May be null: then each thread works alone.
  aio::Executor* executor = nullptr;
};

struct ParamMemoryPlan {
  std::uint64_t cpu_bytes = 0;     // resident and pinned: parameters of cpu units
  std::uint64_t buffer_bytes = 0;  // resident and pinned: the cache of nvme units
  std::uint64_t nvme_bytes = 0;    // files of records on all paths
};

class ParamStorage {
 public:
  static Result<ParamMemoryPlan> plan(const ParamOptions& options);
  // If anything fails, nothing remains allocated and no files remain.
  static Result<std::unique_ptr<ParamStorage>> create(const ParamOptions& options,
                                                      const ParamEnvironment& environment);
  ParamStorage(const ParamStorage&) = delete;
  ParamStorage& operator=(const ParamStorage&) = delete;
  ~ParamStorage() = default;

  const ParamLayout& layout() const { return layout_; }
  // Null: there is no nvme unit.
  swap::StateStore* store() const { return store_.get(); }
  // The parameters of a cpu unit.
  std::span<std::byte> parameters(const ParamLayout::Place& place) const {
    return cpu_.lease.bytes().subspan(place.offset_bytes, place.bytes);
  }
  // Buffers are numbered across all size classes.
  std::span<std::byte> buffer(int index) const { return slices_[static_cast<std::size_t>(index)]; }
  int buffers() const { return static_cast<int>(slices_.size()); }

 private:
  struct Pinned {
    std::unique_ptr<aio::PinnedPool> pool;  // has one buffer
    aio::PinnedPool::Lease lease;
  };

  explicit ParamStorage(ParamLayout layout) : layout_(std::move(layout)) {}
  Status take_memory(const ParamOptions& options, const ParamEnvironment& environment);
  static Status pin(std::uint64_t bytes, const ParamOptions& options, aio::IoBackend* backend,
                    aio::Executor* executor, Pinned& memory);

  const ParamLayout layout_;
  Pinned cpu_;
  Pinned buffers_;
  std::vector<std::span<std::byte>> slices_;
  std::unique_ptr<swap::StateStore> store_;
};

}  // namespace sluice::offload
