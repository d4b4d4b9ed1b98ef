#include "engine/step/unit_binding.h"

#include <algorithm>
#include <cstring>

namespace sluice::engine {
namespace {

constexpr std::uint64_t kMessageBytes = std::uint64_t{4} << 20;

// The hash of a whole unit, gathered from all ranks in order; valid on the first rank.
Result<std::uint64_t> hash_of_all(const RankLink& ranks, std::uint64_t unit_elements,
                                  std::uint64_t width, std::span<const std::byte> own) {
  const bool is_first = ranks.part.rank == 0;
  std::vector<std::byte> all;
  all.reserve(is_first ? unit_elements * width : 0);
  std::vector<std::byte> message;
  for (int from = 0; from < ranks.part.world; ++from) {
    const std::uint64_t bytes =
        offload::shard_of(unit_elements, {from, ranks.part.world}).elements * width;
    for (std::uint64_t first = 0; first < bytes; first += kMessageBytes) {
      message.resize(std::min(kMessageBytes, bytes - first));
      if (from == ranks.part.rank) std::copy_n(own.data() + first, message.size(), message.begin());
      if (from > 0) SLUICE_RETURN_IF_ERROR(ranks.link->broadcast(message, from));
      if (is_first) all.insert(all.end(), message.begin(), message.end());
    }
  }
  return swap::plain_hash(all);
}

}  // namespace

// The host's updates may not have been copied to the device yet.
Status UnitBinding::hash_device_units(const offload::UnitResidency& residency) {
  for (int unit = 0; unit < static_cast<int>(hashes_.size()); ++unit) {
    if (!residency.has_gpu_state(unit)) continue;
    UnitHashes& hashes = hashes_[static_cast<std::size_t>(unit)];
    const std::uint64_t elements = model_.layout(unit).elements;
    SLUICE_ASSIGN_OR_RETURN(const auto gradient, shard_gradient(unit, elements));
    hashes.gradient = swap::plain_hash(gradient);
    SLUICE_ASSIGN_OR_RETURN(const auto parameters, shard_parameters(unit, elements, residency));
    hashes.parameters = swap::plain_hash(parameters);
  }
  return {};
}

Status UnitBinding::hash_shards(const RankLink& ranks, const offload::UnitResidency& residency) {
  for (int unit = 0; unit < static_cast<int>(hashes_.size()); ++unit) {
    const std::uint64_t all = model_.layout(unit).elements;
    if (all == 0) continue;
    const std::uint64_t elements = offload::shard_of(all, ranks.part).elements;
    UnitHashes& hashes = hashes_[static_cast<std::size_t>(unit)];
    SLUICE_ASSIGN_OR_RETURN(const auto gradient, shard_gradient(unit, elements));
    SLUICE_ASSIGN_OR_RETURN(hashes.gradient, hash_of_all(ranks, all, widths_.grad_bytes, gradient));
    SLUICE_ASSIGN_OR_RETURN(const auto parameters, shard_parameters(unit, elements, residency));
    SLUICE_ASSIGN_OR_RETURN(hashes.parameters,
                            hash_of_all(ranks, all, widths_.param_bytes, parameters));
  }
  return {};
}

// Requires that the optimizer got the gradient, and the next step has not begun.
Result<std::vector<std::byte>> UnitBinding::shard_gradient(int unit, std::uint64_t elements) {
  std::vector<std::byte> bytes(elements * widths_.grad_bytes);
  if (bytes.empty()) return bytes;
  if (parts_.gradients->device_gradient(unit) != nullptr) {
    SLUICE_RETURN_IF_ERROR(parts_.gradients->read_device(unit, bytes));
    return bytes;
  }
  SLUICE_ASSIGN_OR_RETURN(const auto lease, parts_.gradients->lease(unit));
  std::memcpy(bytes.data(), lease ? lease.bytes().data() : parts_.gradients->host_gradient(unit),
              bytes.size());
  return bytes;
}

Result<std::vector<std::byte>> UnitBinding::shard_parameters(
    int unit, std::uint64_t elements, const offload::UnitResidency& residency) {
  const std::uint64_t width = widths_.param_bytes;
  std::vector<std::byte> bytes(elements * width);
  if (bytes.empty()) return bytes;
  const bool on_device = residency.has_gpu_state(unit);
  if (on_device) SLUICE_RETURN_IF_ERROR(parts_.device->read_shard(unit, bytes));
  if (!parts_.params->on_host(unit)) return bytes;
  SLUICE_ASSIGN_OR_RETURN(const auto lease, parts_.params->acquire(unit, Access::kRead));
  const offload::ElementRange whole[] = {{.first = 0, .elements = elements}};
  for (const offload::ElementRange& range :
       on_device ? residency.on_host(unit) : std::span(whole)) {
    const auto from = lease.bytes().subspan(range.first * width, range.elements * width);
    std::memcpy(bytes.data() + range.first * width, from.data(), from.size());
  }
  return bytes;
}

}  // namespace sluice::engine
