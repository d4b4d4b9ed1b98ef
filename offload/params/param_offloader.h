// ParamOffloader: the parameters of a model's units on the host. The cpu units are in memory; nvme
// units are on NVMe with a cache of pinned buffers (the parameter swapping of "ZeRO-Infinity", SC
// 2021, section 5.1). Placement affects when a unit is available, never its content. The gpu units
// are not stored here, and must not be acquired.
//
//   offloader->expect(order);                       // forward, backward, update: reading starts
//   for (const int unit : order) {
//     SLUICE_ASSIGN_OR_RETURN(auto lease, offloader->acquire(unit, Access::kRead));
//     copy_to_gpu(lease.bytes());
//   }
//
// Access:  a unit has several readers at once, or one updater. An updater waits until the present
//          readers have gone and, if the unit is still being written to NVMe, until that write has
//          ended. Readers that arrive meanwhile wait for the updater. Readers share a buffer with a
//          write of it, so the result of an update is available immediately.
// Writing: when an update's lease ends, its thread computes the checksums; the write then runs
//          asynchronously. A unit is never read from NVMe while it is being written.
// Reading: whole units, checked on the acquiring thread before the lease is returned. Units are
//          read ahead in the order of expect(), which also decides what leaves the cache; see
//          param_cache.h. Order and hints change only waiting times, never the result.
// Leases:  acquire() of an nvme unit waits for a buffer of its size class (param_layout.h). All
//          threads together may hold and wait for no more buffers of a class than it has; otherwise
//          they may deadlock. Each thread that uses leases needs one, and reading ahead needs at
//          least one: 3 in general. A thread that holds a lease of a unit must not acquire another
//          lease of it, and an updating thread holds one lease at a time.
// Memory:  memory_plan() lists what create() takes. Later only an order longer than any before
//          allocates.
// Threads: all methods and ~Lease() from any thread; create(), remove() and the destructor alone,
//          while no lease exists. Never from a completion callback.
// Errors:  the first failed read, check or write poisons the offloader. Its error names the unit;
//          no more work is started, and every later call except remove() returns that error.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aio/clock.h"
#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "offload/params/param_cache.h"
#include "offload/params/param_layout.h"
#include "swap/state_store.h"

namespace sluice::offload {

// ParamStorage: what ParamOffloader allocates once: memory for the cpu units, buffers for the nvme
// ones, and the store of their records.
//
// Memory:  exactly plan(). Both pieces of memory are mapped, touched, locked and registered once.
// Threads: create() and remove() alone; everything else from any.
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

// Counts of accesses to nvme units (accesses whose read had already begun are not counted), and the
// time they waited, by the backend's clock.
struct ParamStats {
  std::uint64_t hits = 0;    // the unit was in memory
  std::uint64_t shared = 0;  // hits while the unit was still being written
  std::uint64_t misses = 0;  // the access had to begin the read
  std::uint64_t reads = 0;   // completed reads, on demand or ahead
  std::uint64_t writes = 0;
  std::uint64_t bytes_read = 0;  // headers and padding included
  std::uint64_t bytes_written = 0;
  std::int64_t wait_read_ns = 0;
  std::int64_t wait_buffer_ns = 0;  // every buffer of the class was in use
  std::int64_t wait_access_ns = 0;  // all units: for readers, an updater or its write
};

class ParamOffloader {
 public:
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,     // the content is changed
    kReplace,    // new content, zeroed first; each unit's first access is this one or kOverwrite
    kOverwrite,  // new content; what the caller does not write is arbitrary
  };

  using Options = ParamOptions;
  using Environment = ParamEnvironment;
  using MemoryPlan = ParamMemoryPlan;
  static Result<MemoryPlan> memory_plan(const Options& options) {
    return ParamStorage::plan(options);
  }

  // Takes the memory and creates the store. The units have no content yet: Access::kReplace.
  static Result<std::unique_ptr<ParamOffloader>> create(const Options& options,
                                                        const Environment& environment);
  ~ParamOffloader();  // waits for transfers in flight; the files stay, as after a kill
  ParamOffloader(const ParamOffloader&) = delete;
  ParamOffloader& operator=(const ParamOffloader&) = delete;

  // Gives access to one unit until it is destroyed.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { release(); }

    int unit() const { return unit_; }
    // The unit's parameters, starting on a page boundary. Readers must not change them.
    std::span<std::byte> bytes() const { return bytes_; }
    explicit operator bool() const { return owner_ != nullptr; }
    void release();

   private:
    friend class ParamOffloader;
    Lease(ParamOffloader* owner, int unit, Access access, std::span<std::byte> bytes)
        : owner_(owner), unit_(unit), access_(access), bytes_(bytes) {}
    ParamOffloader* owner_ = nullptr;
    int unit_ = -1;
    Access access_ = Access::kRead;
    std::span<std::byte> bytes_;
  };

  // Waits until the unit is in memory and access is possible.
  Result<Lease> acquire(int unit, Access access);

  // Sets the coming accesses of all threads, roughly in order; they replace those expected before.
  void expect(std::span<const int> order);
  // Hints at a unit that is not expected: it is read if that does not delay expected units.
  void prefetch(int unit);

  // Waits until all updates are written (not: durable).
  Status drain();
  // Stops what is in flight and removes the files on NVMe; every later call returns kCancelled.
  Status remove();

  const ParamLayout& layout() const { return layout_; }
  bool in_memory(int unit) const;
  bool on_host(int unit) const { return layout_.place(unit).tier != Tier::kGpu; }
  ParamStats stats() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Unit;
  struct Slot;
  ParamOffloader(std::unique_ptr<ParamStorage> storage, const Options& options,
                 const Environment& environment);
  void stop();

  // Functions that take a Lock release it while they wait, check, or pass transfers to the store.
  Status enter(Lock& lock, int unit, Access access);
  void leave_locked(int unit, Access access);
  Status bring(Lock& lock, int unit, Access access);
  void make_room(Lock& lock, int unit, Access access);
  void release(int unit, Access access) noexcept;

  void occupy_locked(int unit);
  void start_read(Lock& lock, int unit);
  void write_back(Lock& lock, int unit);
  void hand_over(Lock& lock, int unit, bool write);
  void read_ahead(Lock& lock);
  static void on_done(swap::RecordIo& io, void* context) noexcept;
  void check(Lock& lock, int unit);
  Status work_on_image(int unit, bool seal);

  void fail_locked(Error error);
  void changed_locked();
  void wait_for_change(Lock& lock, std::int64_t& waited_ns);
  bool quiet_locked() const { return in_flight_ == 0 && starting_ == 0; }
  void count_locked(int unit);

  Unit& at(int unit) const;
  Slot& slot_of(int unit) const;
  std::span<std::byte> image_of(int unit) const;
  std::span<std::byte> bytes_of(int unit) const;

  const std::unique_ptr<ParamStorage> storage_;
  const ParamLayout& layout_;
  swap::StateStore* const store_;  // null: no nvme unit
  const SteadyClock steady_clock_;
  const Clock& clock_;
  aio::Executor* const executor_;
  std::mutex executor_mutex_;
  bool removed_ = false;

  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  std::unique_ptr<Unit[]> units_;  // NOLINT(modernize-avoid-c-arrays): incomplete here
  std::unique_ptr<Slot[]> slots_;  // NOLINT(modernize-avoid-c-arrays): the same; one a buffer
  ParamCache cache_;
  Status failure_;
  int leases_ = 0;
  int in_flight_ = 0;  // transfers
  int writing_ = 0;    // the transfers among them that write
  int starting_ = 0;   // threads that are passing a transfer to the store
  ParamStats stats_;
};

}  // namespace sluice::offload
