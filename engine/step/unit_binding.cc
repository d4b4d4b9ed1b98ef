#include "engine/step/unit_binding.h"

#include <cstring>

namespace sluice::engine {

// What the host has updated may not have been copied to the device yet.
Status UnitBinding::hash_device_units(const offload::UnitResidency& residency) {
  std::vector<std::byte> bytes;
  for (int unit = 0; unit < static_cast<int>(hashes_.size()); ++unit) {
    if (!residency.has_gpu_state(unit)) continue;
    UnitHashes& hashes = hashes_[static_cast<std::size_t>(unit)];
    const std::uint64_t elements = model_.layout(unit).elements;
    bytes.resize(elements * widths_.grad_bytes);
    SLUICE_RETURN_IF_ERROR(places_.gradients->read_device(unit, bytes));
    hashes.gradient = swap::plain_hash(bytes);

    const std::uint64_t width = widths_.param_bytes;
    bytes.resize(elements * width);
    SLUICE_RETURN_IF_ERROR(places_.device->read_shard(unit, bytes));
    if (places_.params->on_host(unit)) {
      SLUICE_ASSIGN_OR_RETURN(const auto lease, places_.params->acquire(unit, Access::kRead));
      for (const offload::ElementRange& range : residency.on_host(unit)) {
        const auto from = lease.bytes().subspan(range.first * width, range.elements * width);
        std::memcpy(bytes.data() + range.first * width, from.data(), from.size());
      }
    }
    hashes.parameters = swap::plain_hash(bytes);
  }
  return {};
}

}  // namespace sluice::engine
