// ParamOffloader: the parameters of a model's units on the host: in memory for cpu units, on NVMe
// with a cache of pinned buffers for nvme units (the parameter swapping of "ZeRO-Infinity", SC
// 2021, section 5.1). Placement affects when a unit is there, never what it holds. gpu units are
// not its concern: it only knows that they are not here.
//
//   offloader->expect(order);                       // forward, backward, update: reading starts
//   for (const int unit : order) {
//     SLUICE_ASSIGN_OR_RETURN(auto lease, offloader->acquire(unit, Access::kRead));
//     copy_to_gpu(lease.bytes());
//   }
//
// Access:  a unit has several readers at once, or one updater. An updater waits until the present
//          readers have gone and, where the unit is still being written to NVMe, until that has
//          ended; readers that come meanwhile wait for the updater. Readers share a buffer with a
//          write of it, so the result of an update is there immediately.
// Writing: when an update's lease ends, its thread makes the checksums; the write then proceeds by
//          itself. A unit is never read while it is being written.
// Reading: whole and checked, on the acquiring thread, before anyone sees it. Ahead in the order
//          of expect(), which also says what leaves the cache; see param_cache.h. Order and hints
//          never change the result, only what waits.
// Leases:  acquire() of an nvme unit waits for a buffer of its size class (param_layout.h). All
//          threads together may hold and wait for no more of a class than it has buffers, or they
//          may wait for each other forever; each thread that uses leases needs one, and reading
//          ahead needs one or more: so 3 in general. A thread that holds a lease of a unit must not
//          ask for another one of it, and an updating thread holds one at a time.
// Memory:  memory_plan() says what create() takes. Later only an order longer than any before is
//          allocated.
// Threads: all methods and ~Lease() from any; create(), remove() and the destructor alone, with no
//          lease out. Never from a completion callback.
// Errors:  the first failed read, check or write poisons the offloader: it names the unit, nothing
//          more is started, and every later call but remove() returns it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "aio/clock.h"
#include "aio/executor.h"
#include "aio/result.h"
#include "offload/params/param_cache.h"
#include "offload/params/param_layout.h"
#include "offload/params/param_storage.h"
#include "swap/state_store.h"

namespace sluice::offload {

// How the accesses to nvme units went (those that found their read begun are not counted), and what
// they waited for, by the backend's clock.
struct ParamStats {
  std::uint64_t hits = 0;    // the unit was in memory
  std::uint64_t shared = 0;  // hits while the unit was still being written
  std::uint64_t misses = 0;  // its read began only then
  std::uint64_t reads = 0;   // that ended, whether asked for or ahead
  std::uint64_t writes = 0;
  std::uint64_t bytes_read = 0;  // headers and padding included
  std::uint64_t bytes_written = 0;
  std::int64_t wait_read_ns = 0;
  std::int64_t wait_buffer_ns = 0;  // every buffer of the class was in use
  std::int64_t wait_access_ns = 0;  // of all units: for readers, an updater or its write
};

class ParamOffloader {
 public:
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,   // the content is changed
    kReplace,  // new content, beginning with zeros; each unit's first access
  };

  using Options = ParamOptions;
  using Environment = ParamEnvironment;
  using MemoryPlan = ParamMemoryPlan;
  static Result<MemoryPlan> memory_plan(const Options& options) {
    return ParamStorage::plan(options);
  }

  // Takes the memory and makes the store. The units have no content yet: Access::kReplace.
  static Result<std::unique_ptr<ParamOffloader>> create(const Options& options,
                                                        const Environment& environment);
  ~ParamOffloader();  // waits for what is in flight, and leaves the files, as a kill would
  ParamOffloader(const ParamOffloader&) = delete;
  ParamOffloader& operator=(const ParamOffloader&) = delete;

  // Access to one unit until it is destroyed.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { release(); }

    int unit() const { return unit_; }
    // Its parameters, starting on a page boundary. Readers must not change them.
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

  // Waits until the unit is there and access may be had.
  Result<Lease> acquire(int unit, Access access);

  // The coming accesses of all threads, roughly in order; they replace those expected before.
  void expect(std::span<const int> order);
  // A hint for a unit that is not expected: it is read if that costs the expected ones nothing.
  void prefetch(int unit);

  // Waits until everything updated is written (not: durable).
  Status drain();
  // Ends what is in flight and removes the files on NVMe; every call after it returns kCancelled.
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

  // Those that take a Lock release it while they wait, check, or hand transfers to the store.
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

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  std::unique_ptr<Unit[]> units_;  // NOLINT(modernize-avoid-c-arrays): incomplete here
  std::unique_ptr<Slot[]> slots_;  // NOLINT(modernize-avoid-c-arrays): likewise; one a buffer
  ParamCache cache_;
  Status failure_;
  int leases_ = 0;
  int in_flight_ = 0;  // transfers
  int writing_ = 0;    // those of them that write
  int starting_ = 0;   // threads that are handing a transfer to the store
  ParamStats stats_;
};

}  // namespace sluice::offload
