// MemoryLedger: the memory that a run takes of each tier with its units in given places, to the
// byte. The planner weighs placements by this count, and the memory plan is printed from it. It
// equals what the run's parts allocate (ParamOffloader, OptimizerOffloader, gradient sinks, slots),
// because both add up the same footprints. tests/engine/budget/memory_ledger_test.cc checks that
// they agree.
//
// Memory:  owns all that it needs; the spec may be destroyed.
// Threads: const; callable from any thread; no call allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/budget/activation_plan.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/run_spec.h"
#include "offload/planner/placement.h"
#include "offload/state/state_footprint.h"

namespace sluice::engine {

// Resident memory before any part of the run exists, including what LibTorch's libraries keep. On
// the CPU a model of 28,000 parameters trains in 377 MiB (366 after set-up, 384 with 16 threads).
// Half of that are library pages that were relocated or written by initialisers, half are mapped
// from the files. The rest is for allocators' arenas and oneDNN's scratch memory.
inline constexpr std::uint64_t kProgramBytes = std::uint64_t{512} << 20;
// Additional memory of a Python process. With transformers imported, and a module of 0.8B
// parameters built and trained on the CPU, 737 MiB remain in total once all of it is freed.
inline constexpr std::uint64_t kPythonBytes = std::uint64_t{256} << 20;
// The same on a GPU, in addition to the CUDA program's memory. A module of 1.4B parameters took 720
// MiB more than its parts.
inline constexpr std::uint64_t kPythonOnGpuBytes = std::uint64_t{768} << 20;
// Memory of the process itself, by whether it computes on a GPU and whether it runs Python.
std::uint64_t program_bytes(bool on_gpu, bool has_python);
// GPU memory that CUDA takes for a process before its first allocation.
inline constexpr std::uint64_t kCudaContextBytes = std::uint64_t{512} << 20;
// NCCL's buffers and kernels took 1,222 MiB of each of two H100 with NVLink, in addition to
// LibTorch's allocator. One rank does not load it.
constexpr std::uint64_t nccl_bytes(int world) { return world > 1 ? std::uint64_t{1280} << 20 : 0; }

// Bytes by purpose. A line that a run does not have is 0.
struct MemoryAmounts {
  struct Host {
    std::uint64_t params = 0;
    std::uint64_t param_cache = 0;   // of parameters on NVMe
    std::uint64_t param_slots = 0;   // of 8-bit parameters, before expansion
    std::uint64_t param_copies = 0;  // of what this host has gathered; also on a GPU
    std::uint64_t state = 0;
    std::uint64_t swap_buffers = 0;    // of state on NVMe
    std::uint64_t state_transfer = 0;  // while state is set or saved
    std::uint64_t program = 0;
    std::uint64_t unit_inputs = 0;    // that have left the GPU
    std::uint64_t input_buffers = 0;  // of inputs on NVMe
    std::uint64_t gradients = 0;
    std::uint64_t gradient_buffers = 0;  // of gradients on NVMe
  } host;
  struct Gpu {
    std::uint64_t state = 0;
    std::uint64_t resident_params = 0;
    std::uint64_t param_copies = 0;
    std::uint64_t slots = 0;
    std::uint64_t gradients = 0;
    std::uint64_t context = 0;
    std::uint64_t libraries = 0;
  } gpu;
  struct Compute {  // on the GPU, or on the host if it computes
    std::uint64_t activations = 0;
    std::uint64_t kv_cache = 0;
  } compute;
  struct Nvme {
    std::uint64_t params = 0;
    std::uint64_t state = 0;
    std::uint64_t unit_inputs = 0;
    std::uint64_t gradients = 0;
  } nvme;

  offload::TierBytes by_tier(bool on_gpu) const;
};

class MemoryLedger final : public offload::PlacementLedger {
 public:
  // `block_slots`: the maximum number of GPU slots for blocks that pass through. Returns the errors
  // of asked_sub_groups().
  static Result<std::shared_ptr<MemoryLedger>> create(const RunSpec& spec, int block_slots);

  // `places`: the resolved placement per unit.
  using Places = std::span<const offload::UnitPlacement>;
  MemoryAmounts amounts(Places places) const;
  offload::TierBytes bytes(Places places) const override {
    return amounts(places).by_tier(on_gpu_);
  }

  // Nothing else depends on the number of slots.
  void set_block_slots(int block_slots) { block_slots_ = block_slots; }
  std::uint64_t slot_bytes(Places places, int block_slots) const;
  int streamed_blocks(Places places) const;  // without their own buffer on the GPU

 private:
  struct Unit {
    // The parameters that are streamed.
    SlotFootprint::Unit slot;  // on the GPU
    std::uint64_t elements = 0;
    std::uint64_t mapping_bytes = 0;  // in RAM
    std::uint64_t image_bytes = 0;    // of their record on NVMe
    // If those are frozen: the adapters that are trained with them.
    std::uint64_t adapter_place_bytes = 0;
    std::uint64_t adapter_mapping_bytes = 0;
    UnitGradientBytes gradient;
    std::uint64_t gradient_image_bytes = 0;  // of its record, if gradients are on NVMe
    std::vector<offload::GroupRange> ranges;
    // How the shares of the tiers in the configuration, if any, divide this unit.
    offload::TierElements asked;
    offload::StateFootprint asked_state;
  };

  explicit MemoryLedger(const RunSpec& spec, int block_slots);
  void add_units(const RunSpec& spec, std::span<const offload::SubGroup> asked);
  std::vector<std::size_t> by_descending(std::uint64_t Unit::*bytes) const;
  bool is_resident(const offload::UnitPlacement& place) const;
  SlotFootprint::Stays stays(const offload::UnitPlacement& place) const;
  offload::Tier streamed_tier(const offload::UnitPlacement& place) const;
  SlotFootprint slots(Places places) const;
  offload::StateFootprint state(Places places) const;
  void add_params(Places places, MemoryAmounts& amounts) const;
  void add_gpu(Places places, MemoryAmounts& amounts) const;
  void add_gradients_on_nvme(Places places, MemoryAmounts& amounts) const;

  bool on_gpu_;
  bool trains_;
  bool has_frozen_;
  offload::HeldSums sums_;
  int world_;
  int block_slots_;
  std::uint64_t sub_group_elements_;
  offload::StateFootprint::Storage storage_;
  int swap_buffers_;
  config::OffloadParam params_;
  BaseForm base_form_;
  Gathering gathering_;
  ActivationBytes activations_;
  std::uint64_t save_buffers_;
  int gradient_buffers_ = 0;  // 0: gradients are in memory
  MemoryAmounts fixed_;       // independent of the placement
  std::vector<Unit> units_;
  std::vector<std::size_t> by_size_;           // units, by descending size of their parameter image
  std::vector<std::size_t> by_gradient_size_;  // the same, of their gradient image
};

}  // namespace sluice::engine
