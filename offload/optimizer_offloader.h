// OptimizerOffloader: the optimizer state of one rank, spread over the tiers gpu, cpu and nvme, and
// the AdamW step over all of it. Where a sub-group lies changes when its new parameters come, never
// what they are.
//
// The parameters themselves (`hi`, the fp16 copy, or in fp32 mode the master) are not its own: the
// caller says through UnitSource where a unit's are, in host memory for cpu and nvme sub-groups, in
// GPU memory for gpu ones, and gets them back updated. Gradients likewise.
//
//   offloader->prefetch();                     // during backward: state starts to come from NVMe
//   offloader->step({.groups = scalars, .source = &source, .background = true});
//   for each unit: offloader->wait_ready(u); forward(u);
//
// Step:    units in ascending order: cpu sub-groups at once, nvme ones as their records come.
//          "Ready" is not "durable": a unit's parameters may be used while its state is still being
//          written. A background step runs on a thread of the offloader; the next step waits for
//          it. Each step has captured its scalars.
// gpu:     wait_ready(unit) enqueues the unit's gpu sub-groups on the device tier's stream, so it
//          is to be called on the thread that feeds that stream, once for each unit and step.
// Memory:  memory_plan() says what create() takes; a step allocates nothing.
// Threads: all methods from one thread, but wait_ready() and stats() from any.
// Errors:  a failed update poisons the offloader: every later call but remove() returns the first
// error.
//          Resume from a checkpoint.
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
#include "offload/adamw_arrays.h"
#include "offload/isa.h"
#include "offload/sub_groups.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"

namespace sluice::offload {

// Where a unit's parameters and gradients are during a step. Pointers to the unit's first element;
// null where the unit has no sub-group that needs it.
struct UnitArrays {
  void* param = nullptr;       // host: std::uint16_t, or float in fp32 mode; read and written
  const void* grad = nullptr;  // host, of the grad_type
  void* gpu_param = nullptr;
  const void* gpu_grad = nullptr;
};

class UnitSource {
 public:
  virtual ~UnitSource() = default;
  // Just before a unit's update, on the updating thread; may wait for the parameters to be there.
  virtual Result<UnitArrays> begin(int unit) = 0;
  // The host's part of the unit is updated: its gradient is consumed, its parameters are new. On
  // the updating thread, before wait_ready() returns for it.
  virtual void ready(int unit) noexcept = 0;
};

// State in GPU memory, as the offloader sees it. Implemented with CUDA in device_tier_cuda.h. All
// offsets are bytes in the tier's memory; nothing waits but read() and write().
class DeviceTier {
 public:
  virtual ~DeviceTier() = default;
  virtual std::uint64_t size_bytes() const = 0;
  // Enqueues one step over the state of `elements` elements that begins at `offset_bytes`, laid out
  // as state_tiles.h; param and grad are the GPU's.
  virtual Status step(const AdamwScalars& scalars, ParamForm form, GradType grad_type,
                      std::uint64_t offset_bytes, std::uint64_t elements, void* param,
                      const void* grad) = 0;
  // To and from host memory, after what was enqueued before; return when done.
  virtual Status read(std::uint64_t offset_bytes, std::span<std::byte> to) = 0;
  virtual Status write(std::uint64_t offset_bytes, std::span<const std::byte> from) = 0;
  virtual Status read_array(const void* gpu_from, std::span<std::byte> to) = 0;
  virtual Status write_array(void* gpu_to, std::span<const std::byte> from) = 0;
};

// The canonical fp32 state of a range of one unit, whatever the form and the placement.
struct StateRange {
  int unit = 0;
  std::uint64_t first_element = 0;
  std::span<float> master;
  std::span<float> m;
  std::span<float> v;
};

class OptimizerOffloader {
 public:
  struct Options {
    ParamForm form = ParamForm::kSplit;  // kSplit, kFp32AndFp16 or kFp32
    GradType grad_type = GradType::kBf16;
    Isa isa = Isa::kScalar;
    std::vector<UnitSpec> units;
    std::vector<SubGroup> placement;
    std::uint64_t record_elements = 16 << 20;  // at most; a multiple of 65,536
    swap::SwapPipeline::Options swap;          // its buffers: used when a sub-group is on nvme
    swap::StateStore::Options store;           // paths and run; chunk_bytes is set here
    aio::MemoryLock lock = aio::MemoryLock::kTry;
    bool huge_pages = true;
  };
  struct Environment {
    aio::IoQueue* reads = nullptr;      // needed for nvme
    aio::IoQueue* writes = nullptr;     // may be the same
    aio::Executor* executor = nullptr;  // during a step nobody else's
    DeviceTier* device = nullptr;       // needed for gpu
  };

  struct MemoryPlan {
    std::uint64_t cpu_state_bytes = 0;    // resident: state of the cpu tier
    std::uint64_t swap_buffer_bytes = 0;  // resident and pinned
    std::uint64_t gpu_state_bytes = 0;
    std::uint64_t nvme_bytes = 0;  // files on all paths
  };
  static Result<MemoryPlan> memory_plan(const Options& options);

  // Takes the memory and makes the store; the state is not there yet: restore() or initialise().
  static Result<std::unique_ptr<OptimizerOffloader>> create(const Options& options,
                                                            const Environment& environment);
  ~OptimizerOffloader();
  OptimizerOffloader(const OptimizerOffloader&) = delete;
  OptimizerOffloader& operator=(const OptimizerOffloader&) = delete;

  // Sets all state and parameters, range by range (of at most kTileElements), in ascending order of
  // units and elements. `fill` is given the range with moments of zero and a master to be filled
  // in; it may set the moments too. Parameters come out through `source`, as in a step.
  using Fill = std::function<Status(const StateRange& range)>;
  Status restore(UnitSource& source, const Fill& fill);
  // All of it, likewise, as it is after the last step. Drains first.
  using Take = std::function<Status(const StateRange& range)>;
  Status snapshot(UnitSource& source, const Take& take);

  // Starts reading the next step's first records; again and again without effect until the step.
  // An overflowed step is one that never comes: what was read is kept for the one that does.
  Status prefetch();

  struct Step {
    std::vector<AdamwScalars> groups;  // by SubGroup::group
    UnitSource* source = nullptr;      // until the step is done
    bool background = false;
  };
  // Foreground: returns when all host updates are done. Background: returns at once, or when the
  // step before is done.
  Status step(Step step);
  Status wait_ready(int unit);
  bool is_ready(int unit) const;
  // All updates done, and all state on its way written. gpu updates are enqueued.
  Status drain();

  // Drains, as far as it can, and removes the files on NVMe. The destructor leaves them, as a kill
  // would.
  Status remove();

  swap::SwapStats stats() const;
  void reset_stats();

 private:
  class Impl;
  explicit OptimizerOffloader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::offload
