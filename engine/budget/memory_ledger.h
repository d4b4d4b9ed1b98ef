// MemoryLedger: what a run takes of each tier with its units in given places, to the byte: the one
// count that the planner weighs placements by and that the memory plan is printed from. What the
// parts of a run allocate (ParamOffloader, OptimizerOffloader, gradient sinks, slots) is the same,
// for both add up the same footprints; tests/engine/budget/memory_ledger_test.cc holds them
// together.
//
// Memory:  owns all that it needs: the spec may go.
// Threads: const, from any; no call allocates.
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

// What is resident before any part of the run exists, and what LibTorch's libraries keep. On the
// CPU a model of 28,000 parameters trains in 377 MiB (366 after set-up, 384 with 16 threads): half
// are pages of LibTorch's libraries that loading has relocated or initialisers have written, half
// are mapped from their files. The rest is for allocators' arenas and oneDNN's scratch memory.
inline constexpr std::uint64_t kProgramBytes = std::uint64_t{512} << 20;
// Beside it, of a process of Python's: with transformers imported, and a module of 0.8B parameters
// made and trained on the CPU, 737 MiB are left once all of it is gone.
inline constexpr std::uint64_t kPythonBytes = std::uint64_t{256} << 20;
// Likewise on a GPU, beside what takes the place of the former there: a module of 1.4B parameters
// took 720 MiB more than its parts.
inline constexpr std::uint64_t kPythonOnGpuBytes = std::uint64_t{768} << 20;
// Of a process that computes on a GPU, or not; with Python in it, or not.
std::uint64_t program_bytes(bool on_gpu, bool has_python);
// What CUDA takes of a GPU for a process before the process takes anything.
inline constexpr std::uint64_t kCudaContextBytes = std::uint64_t{512} << 20;
// Where there are several ranks: NCCL's buffers and kernels took 1,222 MiB of each of two H100 with
// NVLink, beside LibTorch's allocator.
inline constexpr std::uint64_t kNcclBytes = std::uint64_t{1280} << 20;

// Bytes, by what they are for. A line that a run does not have is 0.
struct MemoryAmounts {
  struct Host {
    std::uint64_t params = 0;
    std::uint64_t param_cache = 0;  // of those on NVMe
    std::uint64_t param_slots = 0;  // that those in 8 bits are computed from
    std::uint64_t state = 0;
    std::uint64_t swap_buffers = 0;    // of state on NVMe
    std::uint64_t state_transfer = 0;  // while it is set or saved
    std::uint64_t program = 0;
    std::uint64_t unit_inputs = 0;    // that left the GPU
    std::uint64_t input_buffers = 0;  // of those on NVMe
    std::uint64_t gradients = 0;
    std::uint64_t gradient_buffers = 0;  // of those on NVMe
  } host;
  struct Gpu {
    std::uint64_t state = 0;
    std::uint64_t resident_params = 0;
    std::uint64_t slots = 0;
    std::uint64_t gradients = 0;
    std::uint64_t context = 0;
    std::uint64_t libraries = 0;
  } gpu;
  struct Compute {  // of the GPU, or of the host where it computes
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
  // `block_slots`: on the GPU, for blocks that pass through, at most. Errors of
  // asked_sub_groups().
  static Result<std::shared_ptr<MemoryLedger>> create(const RunSpec& spec, int block_slots);

  // `places`: as settled, by unit.
  using Places = std::span<const offload::UnitPlacement>;
  MemoryAmounts amounts(Places places) const;
  offload::TierBytes bytes(Places places) const override {
    return amounts(places).by_tier(on_gpu_);
  }

  // With other slots, everything else is the same.
  void set_block_slots(int block_slots) { block_slots_ = block_slots; }
  std::uint64_t slot_bytes(Places places, int block_slots) const;
  int streamed_blocks(Places places) const;  // without a place of their own on the GPU

 private:
  struct Unit {
    // Of its parameters that come and go.
    SlotFootprint::Unit slot;  // on the GPU
    std::uint64_t elements = 0;
    std::uint64_t mapping_bytes = 0;  // in RAM
    std::uint64_t image_bytes = 0;    // of their record
    // Of those that are trained beside them, where they are frozen.
    std::uint64_t adapter_place_bytes = 0;
    std::uint64_t adapter_mapping_bytes = 0;
    UnitGradientBytes gradient;
    std::vector<offload::GroupRange> ranges;
    // Where the configuration asks for shares of the tiers: how they cut this unit.
    offload::TierElements asked;
    offload::StateFootprint asked_state;
  };

  explicit MemoryLedger(const RunSpec& spec, int block_slots);
  void add_units(const RunSpec& spec, std::span<const offload::SubGroup> asked);
  bool is_resident(const offload::UnitPlacement& place) const;
  SlotFootprint::Stays stays(const offload::UnitPlacement& place) const;
  offload::Tier streamed_tier(const offload::UnitPlacement& place) const;
  SlotFootprint slots(Places places) const;
  offload::StateFootprint state(Places places) const;
  void add_params(Places places, MemoryAmounts& amounts) const;
  void add_gpu(Places places, MemoryAmounts& amounts) const;

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
  ActivationBytes activations_;
  std::uint64_t save_buffers_;
  MemoryAmounts fixed_;  // whatever the placement
  std::vector<Unit> units_;
  std::vector<std::size_t> by_size_;  // units, from the largest image of parameters down
};

}  // namespace sluice::engine
