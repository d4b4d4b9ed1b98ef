// GpuState: the optimizer state of the gpu tier, in memory that a DeviceTier lends.
//
// A sub-group's fields are stored whole, one after another, each at a multiple of 256 bytes. So a
// sub-group's step is one launch, and a field of many tiles is one copy. Restores and snapshots go
// through two buffers in host memory: while one is copied, the other is processed.
#pragma once

#include <memory>
#include <span>

#include "aio/pinned_pool.h"
#include "offload/state/device_tier.h"
#include "offload/state/tier_state.h"

namespace sluice::offload {

class StagingBuffers;

class GpuState final : public TierState {
 public:
  // GPU memory that a sub-group takes.
  static std::uint64_t device_bytes(StateForm form, std::uint64_t elements);
  // kOutOfMemory: the device tier has less memory. `device` must outlive it.
  static Result<std::unique_ptr<GpuState>> create(const StateKind& kind,
                                                  std::span<const SubGroup> placement,
                                                  DeviceTier& device);

  // Host memory of the two buffers; a maximum.
  static std::uint64_t max_staging_bytes(StateForm form);
  // Call before and after restore(), snapshot() or amend(): allocates and frees the buffers. `pin`
  // may be empty; if pinning fails, copies are slower.
  Status begin_transfer(int threads, const aio::PinHook& pin);
  void end_transfer();

  ~GpuState() override;

  // Enqueues the update.
  Status update(const UnitUpdate& update) override;
  Status restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;
  Status snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;
  Status amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) override;

 private:
  // A sub-group.
  struct Part {
    std::uint64_t first_element;  // in the unit's shard
    std::uint64_t elements;
    int group;
    std::uint64_t offset_bytes;  // in the device's memory
  };

  GpuState(const StateKind& kind, DeviceTier& device);
  // The tiles that fit in one buffer.
  struct Batch {
    std::uint64_t first = 0;  // element of the part
    std::uint64_t elements = 0;
    AdamwArrays on_host;
    AdamwArrays on_device;
  };

  AdamwArrays arrays_from(const Part& part, std::uint64_t first, void* gpu_param) const;
  const Part& part_of(const SubGroup& sub_group) const;
  Batch batch_of(const Part& part, std::uint64_t index, void* gpu_param) const;
  std::uint64_t batches_of(const Part& part) const;
  Status sweep_batch(int unit, const Part& part, const Batch& batch, StateSweep& sweep) const;
  Status start_copy(const Batch& batch, bool to_device);
  Status finish_after(const Status& status);

  const StateKind kind_;
  DeviceTier& device_;
  UnitParts<Part> parts_;
  std::unique_ptr<StagingBuffers> staging_;  // during a transfer
};

}  // namespace sluice::offload
