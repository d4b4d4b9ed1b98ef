// OptimizerOffloader: the optimizer state of one rank, spread over the tiers gpu, cpu and nvme, and
// the AdamW step over all of it. The tier of a sub-group affects when its new parameters arrive,
// never their values.
//
// The parameters themselves (`hi`, the fp16 copy, or in fp32 mode the master) do not belong to it.
// The caller provides a unit's parameters through UnitSource, in host memory for cpu and nvme
// sub-groups and in GPU memory for gpu ones, and gets them back updated. Gradients are provided in
// the same way.
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
//          step. So it must be called on the thread that submits to that stream. drain() and the
//          next step() enqueue the units that were not waited for.
// Memory:  memory_plan() lists what create() takes, and the less than 64 MiB that restore(),
//          snapshot() and amend() take while they run; a step allocates nothing.
// Threads: all methods from one thread, except that wait_ready(), is_ready() and stats() may be
//          called from any. Calls of restore(), snapshot() and amend() use all threads of the
//          executor, and call back from them. No thread is still working when they return.
// Errors:  a failed update, restore or read of state poisons the offloader: every later call except
//          remove() returns the first error, and waiting threads return it too. Resume from a
//          checkpoint. An invalid call returns kInvalidArgument and changes nothing.
// Shutdown: the destructor waits for a background step, not for its writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "offload/state/frozen_state.h"
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

enum class SnapshotOf : std::uint8_t {
  kAll,
  kBesideStore,  // the state on cpu and gpu
};

class OptimizerOffloader {
 public:
  struct Options {
    StateForm form;
    GradType grad_type = GradType::kBf16;
    Isa isa = Isa::kScalar;
    std::uint64_t run_seed = 0;  // for the random bits that round bf16 moments
    std::vector<UnitSpec> units;
    std::vector<SubGroup> placement;
    std::uint64_t record_elements = 16 << 20;  // at most; a multiple of 65,536
    swap::SwapPipeline::Options swap;          // this and the next: used if a sub-group is on nvme
    swap::StateStore::Options store;           // paths and run; chunk_bytes is set here
    aio::MemoryLock lock = aio::MemoryLock::kTry;  // for the swap buffers
    bool huge_pages = true;
    aio::PinHook hook;  // pins the buffers between host and GPU; empty: not pinned
    // The store has two places for each record, so that freeze() works.
    bool in_place = false;
    // The store to continue in, with in_place. Then restore() reads only the parameters of the nvme
    // sub-groups, and does not call `fill` for them. Another placement in the store is
    // kInvalidArgument from create().
    std::optional<swap::FrozenStore> adopt = {};
  };
  struct Environment {
    aio::IoQueue* reads = nullptr;      // needed for nvme
    aio::IoQueue* writes = nullptr;     // may be the same
    aio::Executor* executor = nullptr;  // used by nothing else during a step
    DeviceTier* device = nullptr;       // needed for gpu
  };

  struct MemoryPlan {
    std::uint64_t cpu_state_bytes = 0;    // resident: state of the cpu tier
    std::uint64_t swap_buffer_bytes = 0;  // resident and pinned
    std::uint64_t gpu_state_bytes = 0;    // in the device tier's memory
    std::uint64_t nvme_bytes = 0;         // records on all paths; manifests are a few KiB
    std::uint64_t transfer_bytes = 0;     // maximum, while restore(), snapshot() or amend() runs
  };
  static Result<MemoryPlan> memory_plan(const Options& options);

  // Takes the memory and creates the store. There is no state yet: call restore() first.
  static Result<std::unique_ptr<OptimizerOffloader>> create(const Options& options,
                                                            const Environment& environment);
  ~OptimizerOffloader();
  OptimizerOffloader(const OptimizerOffloader&) = delete;
  OptimizerOffloader& operator=(const OptimizerOffloader&) = delete;

  // Sets all state and parameters, in ranges of at most kTileElements within a sub-group. `fill`
  // gets a zeroed range and must fill in the master; it may set the moments too. By default it is
  // called in ascending order of units and elements, one call at a time. With kAnyOrder several
  // calls may run at once and in any order within a unit, but units still come one after another.
  // Calls come from any thread of the executor. `fill` must not throw. Parameters are returned
  // through `source`, as in a step. The first error of `fill` or `source` poisons the offloader,
  // because its state is only partly set.
  //
  // bf16 moments that cannot represent a value are rounded with the random bits of step
  // `after_step`, the number of steps that the state has seen.
  using Fill = StateSweep::Visit;
  Status restore(UnitSource& source, const Fill& fill, Calls calls = Calls::kInOrder,
                 std::int64_t after_step = 0);
  // Passes all state after the last step to `take`, in the same ranges and order. Drains first;
  // records that prefetch() had read are read again. An error of `take` or `source` is returned and
  // changes nothing.
  using Take = StateSweep::Visit;
  Status snapshot(UnitSource& source, const Take& take, Calls calls = Calls::kInOrder,
                  SnapshotOf what = SnapshotOf::kAll);

  // Shows the state of some units, in ascending order, range by range and one call at a time, to
  // `change`, which modifies it in place. Parameters are returned through `source`. Drains first.
  // The first error poisons the offloader.
  Status amend(UnitSource& source, std::span<const int> units, const Fill& change);

  // Starts reading the next step's first records; further calls have no effect until that step.
  // Waits for the previous step. If the step is skipped because of an overflow, the records read
  // are kept for the next step that runs.
  Status prefetch();

  struct Step {
    // Indexed by SubGroup::group, or by UnitSpec::scalars where given; copied.
    std::span<const AdamwScalars> groups;
    UnitSource* source = nullptr;  // must stay valid until the step is done
    bool background = false;
    std::int64_t number = 1;  // AdamwOptions::step; selects the random bits that round bf16 moments
    // With in_place: also writes what freeze() needs of the parameters, so that it need not.
    bool keeps_parameters = false;
  };
  // Foreground: returns when all host updates are done. Background: returns as soon as the previous
  // step is done.
  Status step(const Step& step);
  // Waits until the unit's parameters on the host are updated and its gpu part is enqueued.
  Status wait_ready(int unit);
  // Whether wait_ready() would not wait.
  bool is_ready(int unit) const;
  // Waits until all updates are done and all state in flight is written. gpu updates are enqueued.
  Status drain();

  // ---- a checkpoint in place, whose manifest is in the folder `checkpoint`
  // Drains, and freezes the state on NVMe (StateStore::freeze()). `source` gives parameters, which
  // are read if the last step did not keep them. Until one of the next two calls state cannot be
  // changed: kInvalidArgument. If only making it durable failed, the run can continue.
  Result<FrozenState> freeze(UnitSource& source, const std::string& checkpoint);
  Status keep_frozen();
  Status drop_frozen();
  const std::vector<SubGroup>& placement() const { return options_.placement; }

  // Drains as far as possible and removes the files on NVMe, unless they have a frozen generation.
  // The destructor leaves the files, as a killed process would.
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
  Status check_changeable() const;
  Status store_parameters(UnitSource& source);
  Status fail(Error error);
  Status end_step();
  void run_step();
  UnitUpdate update_of(int unit, const UnitArrays& arrays) const;
  Result<UnitArrays> update_on_host(int unit);
  Status update_on_gpu(int unit, const UnitArrays& arrays);
  Result<UnitArrays> begin_unit(UnitSource& source, int unit, bool with_gradients) const;
  TierState& tier_of(const SubGroup& sub_group) const;
  template <typename Wanted, typename Visit>
  Status for_each(UnitSource& source, const Wanted& wanted, const Visit& visit);
  Status begin_restore(const StateSweep& sweep);
  Status begin_snapshot(const StateSweep& sweep, SnapshotOf what);
  Status amend_unit(UnitSource& source, int unit, StateSweep& sweep);
  const std::string& unit_name(int unit) const;

  const Options options_;
  const Environment environment_;
  std::vector<Needs> needs_;                      // by unit
  std::vector<std::vector<ScalarRange>> ranges_;  // by unit
  std::size_t group_count_ = 0;
  bool restored_ = false;
  bool parameters_kept_ = false;  // the store's records of parameters are those of the state

  // The step in progress; set before it begins.
  std::vector<AdamwScalars> groups_;
  MomentSeed rounding_;
  bool keeps_parameters_ = false;
  UnitSource* source_ = nullptr;

  std::unique_ptr<CpuState> cpu_;  // null, like the next two: nothing is placed there
  std::unique_ptr<GpuState> gpu_;
  std::unique_ptr<NvmeState> nvme_;
  std::unique_ptr<UnitProgress> progress_;
  std::unique_ptr<UpdateWorker> worker_;  // the last member: it must end before the others
};

}  // namespace sluice::offload
