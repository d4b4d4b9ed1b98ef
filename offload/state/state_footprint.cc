#include "offload/state/state_footprint.h"

#include <algorithm>

#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "offload/state/gpu_state.h"
#include "offload/state/state_sweep.h"
#include "offload/state/state_tiles.h"
#include "swap/record_image.h"

namespace sluice::offload {
namespace {

std::uint64_t record_bytes(StateForm form, std::uint64_t elements) {
  return swap::RecordShape{.payload_bytes = state_bytes(form, elements)}.image_bytes();
}

}  // namespace

void StateFootprint::add(const Storage& storage, Tier tier, std::uint64_t elements,
                         std::uint64_t count) {
  if (elements == 0 || count == 0) return;
  switch (tier) {
    case Tier::kGpu:
      gpu_ += count * GpuState::device_bytes(storage.form, elements);
      return;
    case Tier::kCpu:
      cpu_ += count * state_bytes(storage.form, elements);
      return;
    case Tier::kNvme:
      break;
  }
  const std::uint64_t rest = elements % storage.record_elements;
  const std::uint64_t largest =
      record_bytes(storage.form, std::min(elements, storage.record_elements));
  std::uint64_t bytes = elements / storage.record_elements * largest;
  if (rest > 0) bytes += record_bytes(storage.form, rest);
  nvme_ += count * bytes;
  largest_record_ = std::max(largest_record_, largest);
}

void StateFootprint::add(const StateFootprint& other) {
  gpu_ += other.gpu_;
  cpu_ += other.cpu_;
  nvme_ += other.nvme_;
  largest_record_ = std::max(largest_record_, other.largest_record_);
}

StateFootprint StateFootprint::of(const Storage& storage, std::span<const SubGroup> placement) {
  StateFootprint all;
  for (const SubGroup& sub_group : placement) all.add(storage, sub_group.tier, sub_group.elements);
  return all;
}

std::uint64_t StateFootprint::cpu_bytes() const { return aio::PageMemory::mapped_bytes(cpu_); }

std::uint64_t StateFootprint::swap_buffer_bytes(int swap_buffers) const {
  return largest_record_ == 0 ? 0 : aio::PinnedPool::mapped_bytes(largest_record_, swap_buffers);
}

std::uint64_t StateFootprint::transfer_bytes(StateForm form) const {
  return StateSweep::bytes_of(StateSweep::kMaxThreads) +
         (gpu_ > 0 ? GpuState::max_staging_bytes(form) : 0);
}

}  // namespace sluice::offload
