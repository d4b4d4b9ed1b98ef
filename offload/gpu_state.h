// GpuState: the optimizer state of the gpu tier, in memory that a DeviceTier lends.
//
// A sub-group's fields lie one behind the other, whole, each at a multiple of 256 bytes: so a
// sub-group's step is one launch. Host memory is used in restore() and snapshot() only, a tile's.
#pragma once

#include <memory>
#include <span>

#include "offload/device_tier.h"
#include "offload/tier_state.h"

namespace sluice::offload {

class GpuState final : public TierState {
 public:
  // What it takes of the GPU's memory.
  static std::uint64_t device_bytes(ParamForm form, std::span<const SubGroup> placement);
  // kOutOfMemory: the device tier has less. `device` must outlive it.
  static Result<std::unique_ptr<GpuState>> create(const StateKind& kind,
                                                  std::span<const SubGroup> placement,
                                                  DeviceTier& device);

  // Enqueues it.
  Status update(const UnitUpdate& update) override;
  Status restore(const SubGroup& sub_group, const UnitArrays& arrays,
                 const TileWork& fill) override;
  Status snapshot(const SubGroup& sub_group, const UnitArrays& arrays,
                  const TileWork& take) override;

 private:
  // A sub-group.
  struct Part {
    std::uint64_t first_element;  // in the unit
    std::uint64_t elements;
    int group;
    std::uint64_t offset_bytes;  // in the device's memory
  };

  GpuState(const StateKind& kind, DeviceTier& device) : kind_(kind), device_(device) {}
  AdamwArrays arrays_from(const Part& part, std::uint64_t first, void* gpu_param) const;
  Status copy_tiles(const SubGroup& sub_group, const UnitArrays& arrays, bool to_device,
                    const TileWork& work);
  Status copy_tile(const AdamwArrays& on_host, const AdamwArrays& on_device, std::uint64_t elements,
                   bool to_device);

  const StateKind kind_;
  DeviceTier& device_;
  UnitParts<Part> parts_;
};

}  // namespace sluice::offload
