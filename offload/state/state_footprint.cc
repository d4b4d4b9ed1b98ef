#include "offload/state/state_footprint.h"

#include <algorithm>

#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "offload/state/frozen_state.h"
#include "offload/state/gpu_state.h"
#include "offload/state/state_sweep.h"
#include "offload/state/state_tiles.h"
#include "swap/record_image.h"

namespace sluice::offload {
namespace {

std::uint64_t record_bytes(StateForm form, std::uint64_t elements) {
  return swap::RecordShape{.payload_bytes = state_bytes(form, elements)}.image_bytes();
}

std::uint64_t parameter_record_bytes(StateForm form, std::uint64_t elements) {
  return swap::RecordShape{.payload_bytes = parameter_bytes(form, elements)}.image_bytes();
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
  const std::uint64_t largest = std::min(elements, storage.record_elements);
  const std::uint64_t whole = elements / storage.record_elements;
  const std::uint64_t rest = elements % storage.record_elements;
  const auto in_records = [&](const auto& bytes_of) {
    return whole * bytes_of(storage.form, storage.record_elements) +
           (rest > 0 ? bytes_of(storage.form, rest) : 0);
  };
  std::uint64_t bytes = in_records(record_bytes);
  largest_record_ = std::max(largest_record_, record_bytes(storage.form, largest));
  if (storage.in_place && has_parameter_records(storage.form)) {
    bytes += in_records(parameter_record_bytes);
    largest_parameter_record_ =
        std::max(largest_parameter_record_, parameter_record_bytes(storage.form, largest));
  }
  nvme_ += count * (storage.in_place ? 2 : 1) * bytes;
}

void StateFootprint::add(const StateFootprint& other) {
  gpu_ += other.gpu_;
  cpu_ += other.cpu_;
  nvme_ += other.nvme_;
  largest_record_ = std::max(largest_record_, other.largest_record_);
  largest_parameter_record_ = std::max(largest_parameter_record_, other.largest_parameter_record_);
}

StateFootprint StateFootprint::of(const Storage& storage, std::span<const SubGroup> placement) {
  StateFootprint all;
  for (const SubGroup& sub_group : placement) all.add(storage, sub_group.tier, sub_group.elements);
  return all;
}

std::uint64_t StateFootprint::cpu_bytes() const { return aio::PageMemory::mapped_bytes(cpu_); }

std::uint64_t StateFootprint::swap_buffer_bytes(int swap_buffers) const {
  std::uint64_t bytes = 0;
  if (largest_record_ > 0) bytes = aio::PinnedPool::mapped_bytes(largest_record_, swap_buffers);
  if (largest_parameter_record_ > 0)
    bytes += aio::PinnedPool::mapped_bytes(largest_parameter_record_, kParameterBuffers);
  return bytes;
}

std::uint64_t StateFootprint::transfer_bytes(StateForm form) const {
  return StateSweep::bytes_of(StateSweep::kMaxThreads) +
         (gpu_ > 0 ? GpuState::max_staging_bytes(form) : 0);
}

}  // namespace sluice::offload
