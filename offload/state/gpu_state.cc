#include "offload/state/gpu_state.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/page_memory.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "aio/units.h"
#include "offload/state/state_footprint.h"
#include "offload/state/state_tiles.h"

namespace sluice::offload {

// StagingBuffers: two buffers in host memory through which the state of tiles is copied to and from
// a GPU: while one is copied, the other is processed. A buffer's fields are stored one after
// another, each whole, as on the GPU, so that a field of many tiles is one copy.
//
// Memory:  bytes_of(form, tiles) during its lifetime; pinned if the hook can, which only makes
//          copies faster.
class StagingBuffers {
 public:
  // Bytes of both buffers, parameters included.
  static std::uint64_t bytes_of(StateForm form, std::uint64_t tiles);
  // Each buffer has `tiles` whole tiles. `pin` may be empty.
  static Result<std::unique_ptr<StagingBuffers>> create(StateForm form, std::uint64_t tiles,
                                                        const aio::PinHook& pin);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  std::uint64_t elements() const { return elements_; }  // in one buffer
  // The arrays of one buffer; the two take turns.
  AdamwArrays arrays(std::uint64_t turn) const;

 private:
  StagingBuffers(StateForm form, std::uint64_t tiles, aio::PageMemory memory,
                 const aio::PinHook& pin);

  const StateForm form_;
  const std::uint64_t elements_;
  aio::PageMemory memory_;
  const aio::PinHook pin_;
  bool pinned_ = false;
};

std::uint64_t StagingBuffers::bytes_of(StateForm form, std::uint64_t tiles) {
  return 2 * tiles * kTileElements *
         static_cast<std::uint64_t>(state_bytes_per_element(form) +
                                    param_bytes_per_element(form.param));
}

Result<std::unique_ptr<StagingBuffers>> StagingBuffers::create(StateForm form, std::uint64_t tiles,
                                                               const aio::PinHook& pin) {
  SLUICE_ASSIGN_OR_RETURN(auto memory, aio::PageMemory::map(bytes_of(form, tiles), true));
  return std::unique_ptr<StagingBuffers>(new StagingBuffers(form, tiles, std::move(memory), pin));
}

StagingBuffers::StagingBuffers(StateForm form, std::uint64_t tiles, aio::PageMemory memory,
                               const aio::PinHook& pin)
    : form_(form), elements_(tiles * kTileElements), memory_(std::move(memory)), pin_(pin) {
  if (!pin_.pin) return;
  const Status pinned = pin_.pin(memory_.bytes());
  pinned_ = pinned.ok();
  if (!pinned_) log::warning_once("pin-staging", pinned.error().message());
}

StagingBuffers::~StagingBuffers() {
  if (pinned_) pin_.unpin(memory_.bytes());
}

AdamwArrays StagingBuffers::arrays(std::uint64_t turn) const {
  std::byte* const param = memory_.data() + turn % 2 * (memory_.size_bytes() / 2);
  std::byte* const master =
      param + elements_ * static_cast<std::uint64_t>(param_bytes_per_element(form_.param));
  std::byte* const m = master + elements_ * master_bytes_per_element(form_.param);
  const StateTile fields =
      fields_at(form_, master, m, m + elements_ * element_bytes(form_.moments));
  return tile_arrays(form_, fields, param);
}

namespace {

constexpr std::uint64_t kFieldAlignment = 256;

std::uint64_t field_bytes(std::uint64_t elements, std::uint64_t element_bytes) {
  return align_up(elements * element_bytes, kFieldAlignment);
}

// Bytes of lo or of the master; 0: neither is part of the state.
std::uint64_t first_field_bytes(StateForm form, std::uint64_t elements) {
  return field_bytes(elements, master_bytes_per_element(form.param));
}

// The number of tiles for which there is room, in whole rounds of the threads, but no more than
// exist.
std::uint64_t batch_tiles(int threads, std::uint64_t most_elements) {
  const int rounds = StateSweep::kMaxThreads / threads;
  return std::min(static_cast<std::uint64_t>(rounds * threads), tile_count(most_elements));
}

// The arrays from their element `first` on.
AdamwArrays arrays_at(const AdamwArrays& arrays, std::uint64_t first) {
  AdamwArrays at = arrays;
  const auto move = [first](auto*& array) { array = array == nullptr ? nullptr : array + first; };
  move(at.param16);
  move(at.lo);
  move(at.master);
  move(at.m);
  move(at.v);
  move(at.m16);
  move(at.v16);
  return at;
}

}  // namespace

GpuState::GpuState(const StateKind& kind, DeviceTier& device) : kind_(kind), device_(device) {}

GpuState::~GpuState() = default;

std::uint64_t GpuState::device_bytes(StateForm form, std::uint64_t elements) {
  return first_field_bytes(form, elements) + 2 * field_bytes(elements, element_bytes(form.moments));
}

Result<std::unique_ptr<GpuState>> GpuState::create(const StateKind& kind,
                                                   std::span<const SubGroup> placement,
                                                   DeviceTier& device) {
  const std::span<std::byte> memory = device.memory();
  const std::uint64_t needed = StateFootprint::of({.form = kind.form}, placement).gpu_bytes();
  if (needed > memory.size()) {
    return Error(ErrorCode::kOutOfMemory,
                 "the optimizer state on the GPU needs " + format_bytes(needed) +
                     " of GPU memory, but only has " + format_bytes(memory.size()) +
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
    offset_bytes += device_bytes(kind.form, sub_group.elements);
  }
  return gpu;
}

// The part's arrays from its element `first` on.
AdamwArrays GpuState::arrays_from(const Part& part, std::uint64_t first, void* gpu_param) const {
  const std::uint64_t moment_bytes = element_bytes(kind_.form.moments);
  std::byte* const master = device_.memory().data() + part.offset_bytes;
  std::byte* const m = master + first_field_bytes(kind_.form, part.elements);
  std::byte* const v = m + field_bytes(part.elements, moment_bytes);
  const StateTile fields =
      fields_at(kind_.form, master + first * master_bytes_per_element(kind_.form.param),
                m + first * moment_bytes, v + first * moment_bytes);
  return tile_arrays(kind_.form, fields,
                     param_at(kind_.form.param, gpu_param, part.first_element + first));
}

Status GpuState::update(const UnitUpdate& update) {
  for (const Part& part : parts_.of(update.unit)) {
    for (std::uint64_t i = 0; i < part.elements;) {
      const std::uint64_t in_shard = part.first_element + i;
      const auto piece = update.piece(part.group, in_shard, part.first_element + part.elements);
      const AdamwArrays arrays = step_arrays(arrays_from(part, i, update.arrays.gpu_param), kind_,
                                             update, update.arrays.gpu_grad, in_shard);
      SLUICE_RETURN_IF_ERROR(device_.step(piece.scalars, arrays, piece.end - in_shard));
      i = piece.end - part.first_element;
    }
  }
  return {};
}

// ---- all state -------------------------------------------------------------------------------

std::uint64_t GpuState::max_staging_bytes(StateForm form) {
  return StagingBuffers::bytes_of(form, StateSweep::kMaxThreads);
}

Status GpuState::begin_transfer(int threads, const aio::PinHook& pin) {
  std::uint64_t most_elements = 0;
  for (const Part& part : parts_.all()) most_elements = std::max(most_elements, part.elements);
  SLUICE_ASSIGN_OR_RETURN(
      staging_, StagingBuffers::create(kind_.form, batch_tiles(threads, most_elements), pin));
  return {};
}

void GpuState::end_transfer() { staging_.reset(); }

const GpuState::Part& GpuState::part_of(const SubGroup& sub_group) const {
  const std::span<const Part> parts = parts_.of(sub_group);
  SLUICE_CHECK(parts.size() == 1, "a sub-group of this tier");
  return parts.front();
}

std::uint64_t GpuState::batches_of(const Part& part) const {
  return (part.elements - 1) / staging_->elements() + 1;
}

GpuState::Batch GpuState::batch_of(const Part& part, std::uint64_t index, void* gpu_param) const {
  const std::uint64_t first = index * staging_->elements();
  return {.first = first,
          .elements = std::min(staging_->elements(), part.elements - first),
          .on_host = staging_->arrays(index),
          .on_device = arrays_from(part, first, gpu_param)};
}

Status GpuState::sweep_batch(int unit, const Part& part, const Batch& batch,
                             StateSweep& sweep) const {
  return sweep.run({.unit = unit,
                    .count = tile_count(batch.elements),
                    .at = [&](std::uint64_t index) -> StateSweep::Tile {
                      const std::uint64_t first = index * kTileElements;
                      return {part.first_element + batch.first + first,
                              std::min(kTileElements, batch.elements - first),
                              arrays_at(batch.on_host, first)};
                    }});
}

Status GpuState::start_copy(const Batch& batch, bool to_device) {
  const auto copy = [&](auto* host, auto* device) -> Status {
    if (host == nullptr) return {};
    const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(host),
                                     batch.elements * sizeof(*host));
    return to_device ? device_.start_write(device, bytes) : device_.start_read(device, bytes);
  };
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.param16, batch.on_device.param16));
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.lo, batch.on_device.lo));
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.master, batch.on_device.master));
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.m, batch.on_device.m));
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.v, batch.on_device.v));
  SLUICE_RETURN_IF_ERROR(copy(batch.on_host.m16, batch.on_device.m16));
  return copy(batch.on_host.v16, batch.on_device.v16);
}

// Waits for the device even after an error, so that no copy still uses a buffer.
Status GpuState::finish_after(const Status& status) {
  Status finished = device_.finish();
  return status.ok() ? finished : status;
}

// While one batch is copied, the next is prepared in the other buffer.
Status GpuState::restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  const Part& part = part_of(sub_group);
  const auto all = [&]() -> Status {
    for (std::uint64_t i = 0; i < batches_of(part); ++i) {
      const Batch batch = batch_of(part, i, arrays.gpu_param);
      SLUICE_RETURN_IF_ERROR(sweep_batch(sub_group.unit, part, batch, sweep));
      SLUICE_RETURN_IF_ERROR(device_.finish());
      SLUICE_RETURN_IF_ERROR(start_copy(batch, true));
    }
    return {};
  };
  return finish_after(all());
}

// While one batch is processed, the next is copied.
Status GpuState::snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  const Part& part = part_of(sub_group);
  const auto all = [&]() -> Status {
    const std::uint64_t batches = batches_of(part);
    SLUICE_RETURN_IF_ERROR(start_copy(batch_of(part, 0, arrays.gpu_param), false));
    for (std::uint64_t i = 0; i < batches; ++i) {
      SLUICE_RETURN_IF_ERROR(device_.finish());
      if (i + 1 < batches)
        SLUICE_RETURN_IF_ERROR(start_copy(batch_of(part, i + 1, arrays.gpu_param), false));
      SLUICE_RETURN_IF_ERROR(
          sweep_batch(sub_group.unit, part, batch_of(part, i, arrays.gpu_param), sweep));
    }
    return {};
  };
  return finish_after(all());
}

// One batch after another: amending is rare and affects few units.
Status GpuState::amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  const Part& part = part_of(sub_group);
  const auto all = [&]() -> Status {
    for (std::uint64_t i = 0; i < batches_of(part); ++i) {
      const Batch batch = batch_of(part, i, arrays.gpu_param);
      SLUICE_RETURN_IF_ERROR(start_copy(batch, false));
      SLUICE_RETURN_IF_ERROR(device_.finish());
      SLUICE_RETURN_IF_ERROR(sweep_batch(sub_group.unit, part, batch, sweep));
      SLUICE_RETURN_IF_ERROR(start_copy(batch, true));
      SLUICE_RETURN_IF_ERROR(device_.finish());
    }
    return {};
  };
  return finish_after(all());
}

}  // namespace sluice::offload
