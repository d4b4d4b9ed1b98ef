#include "offload/gpu_state.h"

#include <algorithm>
#include <array>
#include <string>

#include "aio/check.h"
#include "aio/units.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kFieldAlignment = 256;

std::uint64_t field_bytes(std::uint64_t elements, std::uint64_t element_bytes) {
  return align_up(elements * element_bytes, kFieldAlignment);
}

// lo, or the master; 0: neither is part of the state.
std::uint64_t first_field_bytes(ParamForm form, std::uint64_t elements) {
  return field_bytes(elements, form == ParamForm::kSplit ? 2 : form == ParamForm::kFp32 ? 0 : 4);
}

std::uint64_t part_bytes(ParamForm form, std::uint64_t elements) {
  return first_field_bytes(form, elements) + 2 * field_bytes(elements, sizeof(float));
}

}  // namespace

std::uint64_t GpuState::device_bytes(ParamForm form, std::span<const SubGroup> placement) {
  std::uint64_t bytes = 0;
  for (const SubGroup& sub_group : placement)
    if (sub_group.tier == Tier::kGpu) bytes += part_bytes(form, sub_group.elements);
  return bytes;
}

Result<std::unique_ptr<GpuState>> GpuState::create(const StateKind& kind,
                                                   std::span<const SubGroup> placement,
                                                   DeviceTier& device) {
  const std::span<std::byte> memory = device.memory();
  const std::uint64_t needed = device_bytes(kind.form, placement);
  if (needed > memory.size()) {
    return Error(ErrorCode::kOutOfMemory,
                 "the optimizer state of tier gpu needs " + format_bytes(needed) +
                     " of GPU memory and was given " + format_bytes(memory.size()) +
                     ": place less of it there, or raise gpu_gib");
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kFieldAlignment != 0)
    return Error(ErrorCode::kInvalidArgument,
                 "a device tier's memory must be aligned to 256 bytes");
  std::unique_ptr<GpuState> gpu(new GpuState(kind, device));
  std::uint64_t offset_bytes = 0;
  for (const SubGroup& sub_group : placement) {
    if (sub_group.tier != Tier::kGpu) continue;
    gpu->parts_.add(sub_group.unit, {.first_element = sub_group.first_element,
                                     .elements = sub_group.elements,
                                     .group = sub_group.group,
                                     .offset_bytes = offset_bytes});
    offset_bytes += part_bytes(kind.form, sub_group.elements);
  }
  return gpu;
}

// The part's arrays from its element `first` on.
AdamwArrays GpuState::arrays_from(const Part& part, std::uint64_t first, void* gpu_param) const {
  std::byte* const state = device_.memory().data() + part.offset_bytes;
  std::byte* const moments = state + first_field_bytes(kind_.form, part.elements);
  StateTile fields;
  if (kind_.form == ParamForm::kSplit) {
    fields.lo = reinterpret_cast<std::uint16_t*>(state) + first;
  } else if (kind_.form != ParamForm::kFp32) {
    fields.master = reinterpret_cast<float*>(state) + first;
  }
  fields.m = reinterpret_cast<float*>(moments) + first;
  fields.v = reinterpret_cast<float*>(moments + field_bytes(part.elements, sizeof(float))) + first;
  return tile_arrays(kind_.form, fields,
                     param_at(kind_.form, gpu_param, part.first_element + first));
}

Status GpuState::update(const UnitUpdate& update) {
  for (const Part& part : parts_.of(update.unit)) {
    AdamwArrays arrays = arrays_from(part, 0, update.arrays.gpu_param);
    arrays.grad_type = kind_.grad_type;
    arrays.grad = grad_at(kind_.grad_type, update.arrays.gpu_grad, part.first_element);
    SLUICE_RETURN_IF_ERROR(
        device_.step(update.groups[static_cast<std::size_t>(part.group)], arrays, part.elements));
  }
  return {};
}

Status GpuState::restore(const SubGroup& sub_group, const UnitArrays& arrays,
                         const TileWork& fill) {
  return copy_tiles(sub_group, arrays, true, fill);
}

Status GpuState::snapshot(const SubGroup& sub_group, const UnitArrays& arrays,
                          const TileWork& take) {
  return copy_tiles(sub_group, arrays, false, take);
}

Status GpuState::copy_tiles(const SubGroup& sub_group, const UnitArrays& arrays, bool to_device,
                            const TileWork& work) {
  const std::span<const Part> parts = parts_.of(sub_group);
  SLUICE_CHECK(parts.size() == 1, "a sub-group of this tier");
  const Part& part = parts.front();
  struct alignas(64) Line {
    std::byte bytes[64];  // NOLINT(modernize-avoid-c-arrays): aligned storage
  };
  const std::uint64_t tile_elements = std::min(kTileElements, part.elements);
  std::vector<Line> state(state_bytes(kind_.form, tile_elements) / sizeof(Line));
  std::vector<float> param(tile_elements);
  for (std::uint64_t first = 0; first < part.elements; first += kTileElements) {
    const std::uint64_t elements = std::min(kTileElements, part.elements - first);
    auto* const tile = reinterpret_cast<std::byte*>(state.data());
    const AdamwArrays on_host =
        tile_arrays(kind_.form, state_tile(kind_.form, tile, elements), param.data());
    const AdamwArrays on_device = arrays_from(part, first, arrays.gpu_param);
    if (!to_device) SLUICE_RETURN_IF_ERROR(copy_tile(on_host, on_device, elements, false));
    SLUICE_RETURN_IF_ERROR(work(part.first_element + first, elements, on_host));
    if (to_device) SLUICE_RETURN_IF_ERROR(copy_tile(on_host, on_device, elements, true));
  }
  return {};
}

Status GpuState::copy_tile(const AdamwArrays& on_host, const AdamwArrays& on_device,
                           std::uint64_t elements, bool to_device) {
  const auto copy = [&](auto* host, auto* device) -> Status {
    if (host == nullptr) return {};
    const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(host), elements * sizeof(*host));
    return to_device ? device_.write(device, bytes) : device_.read(device, bytes);
  };
  SLUICE_RETURN_IF_ERROR(copy(on_host.param16, on_device.param16));
  SLUICE_RETURN_IF_ERROR(copy(on_host.lo, on_device.lo));
  SLUICE_RETURN_IF_ERROR(copy(on_host.master, on_device.master));
  SLUICE_RETURN_IF_ERROR(copy(on_host.m, on_device.m));
  return copy(on_host.v, on_device.v);
}

}  // namespace sluice::offload
