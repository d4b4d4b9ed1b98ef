// OptimizerOffloader: the optimizer state of one rank, spread over the tiers gpu, cpu and nvme, and
// the AdamW step over all of it. Where a sub-group lies affects when its new parameters arrive,
// never what they are.
//
// The parameters themselves (`hi`, the fp16 copy, or in fp32 mode the master) do not belong to it:
// the caller says through UnitSource where a unit's are, in host memory for cpu and nvme
// sub-groups, in GPU memory for gpu ones, and gets them back updated. Gradients likewise.
//
//   offloader->prefetch();                     // during backward: state starts to come from NVMe
//   offloader->step({.groups = scalars, .source = &source, .background = true});
//   for each unit: offloader->wait_ready(u); forward(u);
//
// Step:    units in ascending order: cpu sub-groups immediately, nvme ones as their records arrive.
//          "Ready" is not "durable": a unit's parameters may be used while its state is still being
//          written. A background step runs on a thread of the offloader; the next step waits for
//          it. Each step captures its scalars.
// gpu:     wait_ready(unit) enqueues the unit's gpu sub-groups on the device tier's stream, once a
//          step, so call it on the thread that feeds that stream; drain() and the next step()
//          enqueue those that were not waited for.
// Memory:  memory_plan() says what create() takes, and what restore(), snapshot() and amend() take
//          while they run, less than 64 MiB; a step allocates nothing.
// Threads: all methods from one thread, but wait_ready(), is_ready() and stats() from any.
//          restore(), snapshot() and amend() use all threads of the executor, and call back from
//          them; none is still working when they return.
// Errors:  a failed update, restore or read of state poisons the offloader: every later call but
//          remove() returns the first error, and waiters wake with it. Resume from a checkpoint.
//          kInvalidArgument for a call that makes no sense changes nothing.
// Shutdown: the destructor waits for a background step, not for its writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/state/device_tier.h"
#include "offload/state/state_sweep.h"
#include "offload/state/state_tiles.h"
#include "offload/state/unit_source.h"
#include "offload/state/unit_update.h"
#include "offload/sub_groups.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"

namespace sluice::offload {

class CpuState;
class GpuState;
class NvmeState;
class TierState;
class UnitProgress;
class UpdateWorker;

class OptimizerOffloader {
 public:
  struct Options {
    StateForm form;
    GradType grad_type = GradType::kBf16;
    Isa isa = Isa::kScalar;
    std::uint64_t run_seed = 0;  // of what bf16 moments are rounded with
    std::vector<UnitSpec> units;
    std::vector<SubGroup> placement;
    std::uint64_t record_elements = 16 << 20;  // at most; a multiple of 65,536
    swap::SwapPipeline::Options swap;          // used, like the next, when a sub-group is on nvme
    swap::StateStore::Options store;           // paths and run; chunk_bytes is set here
    aio::MemoryLock lock = aio::MemoryLock::kTry;  // of the swap buffers
    bool huge_pages = true;
    aio::PinHook hook;  // of buffers between host and GPU; empty: not pinned
  };
  struct Environment {
    aio::IoQueue* reads = nullptr;      // needed for nvme
    aio::IoQueue* writes = nullptr;     // may be the same
    aio::Executor* executor = nullptr;  // during a step exclusive to it
    DeviceTier* device = nullptr;       // needed for gpu
  };

  struct MemoryPlan {
    std::uint64_t cpu_state_bytes = 0;    // resident: state of the cpu tier
    std::uint64_t swap_buffer_bytes = 0;  // resident and pinned
    std::uint64_t gpu_state_bytes = 0;    // of the device tier's memory
    std::uint64_t nvme_bytes = 0;         // of records on all paths; manifests are a few KiB
    std::uint64_t transfer_bytes = 0;     // while restore() or snapshot() runs, at most
  };
  static Result<MemoryPlan> memory_plan(const Options& options);

  // Takes the memory and makes the store; the state is not there yet: restore() comes first.
  static Result<std::unique_ptr<OptimizerOffloader>> create(const Options& options,
                                                            const Environment& environment);
  ~OptimizerOffloader();
  OptimizerOffloader(const OptimizerOffloader&) = delete;
  OptimizerOffloader& operator=(const OptimizerOffloader&) = delete;

  // Sets all state and parameters, range by range, each of at most kTileElements within a
  // sub-group. `fill` is given the range zeroed and must fill in the master; it may set the moments
  // too. It is called in ascending order of units and elements, one call at a time, or, where it
  // allows it, kAnyOrder: several calls at once, in any order, but unit after unit; either way on
  // any thread of the executor. It must not throw. Parameters come out through `source`, as in a
  // step. The first error of `fill` or `source` poisons the offloader: its state is half set.
  //
  // Where bf16 moments cannot represent what they are set to, they are rounded with the random bits
  // of step `after_step`: how many the state has seen.
  using Fill = StateSweep::Visit;
  Status restore(UnitSource& source, const Fill& fill, Calls calls = Calls::kInOrder,
                 std::int64_t after_step = 0);
  // Takes all of it, likewise, as it is after the last step. Drains first; what prefetch() has read
  // is read again. An error of `take` or `source` is returned and changes nothing.
  using Take = StateSweep::Visit;
  Status snapshot(UnitSource& source, const Take& take, Calls calls = Calls::kInOrder);

  // Shows the state of some units, in ascending order, range by range and one call at a time, for
  // `change` to change it in place; parameters come out through `source`. Drains first. The first
  // error poisons the offloader.
  Status amend(UnitSource& source, std::span<const int> units, const Fill& change);

  // Starts reading the next step's first records; further calls have no effect until the step.
  // Waits for the previous step. An overflowed step never comes: what was read is kept for the one
  // that does.
  Status prefetch();

  struct Step {
    // By SubGroup::group, or what UnitSpec::scalars says instead; copied.
    std::span<const AdamwScalars> groups;
    UnitSource* source = nullptr;  // until the step is done
    bool background = false;
    std::int64_t number = 1;  // AdamwOptions::step; bf16 moments are rounded with its random bits
  };
  // Foreground: returns when all host updates are done. Background: returns immediately, or when
  // the previous step is done.
  Status step(const Step& step);
  // Waits until the unit's parameters are new or, for the gpu part, until that is enqueued.
  Status wait_ready(int unit);
  // wait_ready() would not wait.
  bool is_ready(int unit) const;
  // Waits until all updates are done and all state in flight is written. gpu updates are enqueued.
  Status drain();

  // Drains, as far as possible, and removes the files on NVMe. The destructor leaves them, as a
  // kill would.
  Status remove();

  swap::SwapStats stats() const;

 private:
  struct Needs {
    bool host = false;
    bool gpu = false;
  };

  OptimizerOffloader(const Options& options, const Environment& environment);
  Status make_tiers();
  Status check_step(const Step& step) const;
  Status fail(Error error);
  Status end_step();
  void run_step();
  UnitUpdate update_of(int unit, const UnitArrays& arrays) const;
  Result<UnitArrays> update_on_host(int unit);
  Status update_on_gpu(int unit, const UnitArrays& arrays);
  Result<UnitArrays> begin_unit(UnitSource& source, int unit, bool with_gradients) const;
  TierState& tier_of(const SubGroup& sub_group) const;
  Status for_each_unit(UnitSource& source,
                       const std::function<Status(const SubGroup&, const UnitArrays&)>& visit);
  Status begin_restore(const StateSweep& sweep);
  Status begin_snapshot(const StateSweep& sweep);
  Status amend_unit(UnitSource& source, int unit, StateSweep& sweep);
  const std::string& unit_name(int unit) const;

  const Options options_;
  const Environment environment_;
  std::vector<Needs> needs_;                      // of each unit
  std::vector<std::vector<ScalarRange>> ranges_;  // likewise
  std::size_t group_count_ = 0;
  bool restored_ = false;

  // Of the step in progress: set before it begins.
  std::vector<AdamwScalars> groups_;
  MomentSeed rounding_;
  UnitSource* source_ = nullptr;

  std::unique_ptr<CpuState> cpu_;  // null, like the next two: nothing is placed there
  std::unique_ptr<GpuState> gpu_;
  std::unique_ptr<NvmeState> nvme_;
  std::unique_ptr<UnitProgress> progress_;
  std::unique_ptr<UpdateWorker> worker_;  // the last member: it ends before what it uses
};

}  // namespace sluice::offload
