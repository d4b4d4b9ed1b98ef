#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_step.h"
#include "offload/params/int8_blocks_cuda.h"

namespace sluice::engine {
namespace {

using offload::ParamOffloader;

constexpr int kNobody = -1;

at::Tensor zeroed(std::uint64_t bytes) {
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  return at::zeros({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

class CudaUnitParameters final : public UnitParameters {
 public:
  CudaUnitParameters(const ModelLayout& model, CudaSlotOptions options, ParamOffloader& params,
                     TraceLog* trace)
      : model_(model),
        options_(std::move(options)),
        footprint_(SlotFootprint::of(model, options_)),
        params_(params),
        trace_(trace),
        copies_(c10::cuda::getStreamFromPool(true)) {
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    for (int unit = 0; unit < model.units(); ++unit)
      units_.push_back(
          {std::make_unique<SlotStorage>(model.layout(unit), scalar_type(options_.type), device)});
    make_resident_places();
    for (const UnitRole of : kSlotRoles) {
      for (int i = 0; i < footprint_.slots(of, options_.block_slots); ++i) {
        shared_.push_back(zeroed(footprint_.slot_bytes(of)));
        add_slot(of, shared_.back().data_ptr());
      }
    }
    unpacked_lender_ = zeroed(footprint_.unpacked().lender_bytes());
    unpacked_ = zeroed(footprint_.unpacked().other_bytes());
    rank_streamed_blocks();
  }

  // Its host functions hold leases of the offloader.
  ~CudaUnitParameters() override { static_cast<void>(cudaStreamSynchronize(copies_.stream())); }

  Status prefetch(int unit) override {
    const int there = find(unit);
    if (there != kNobody) {
      slot_at(there).last_use = ++uses_;  // it is wanted sooner than those used since
      return {};
    }
    if (!params_.in_memory(unit)) {
      params_.prefetch(unit);
      return {};
    }
    const int index = free_slot(unit);
    return index == kNobody ? Status() : load(unit, index);
  }

  Result<const UnitViews*> acquire(int unit) override {
    int index = find(unit);
    if (index == kNobody) {
      index = free_slot(unit);
      SLUICE_CHECK(index != kNobody,
                   "a slot that is free: no more units are acquired than there are");
      SLUICE_RETURN_IF_ERROR(load(unit, index));
    }
    Slot& slot = slot_at(index);
    slot.loaded.block(c10::cuda::getCurrentCUDAStream());
    slot.last_use = ++uses_;
    void* memory = slot.memory;
    if (is_packed(slot)) {
      SLUICE_ASSIGN_OR_RETURN(memory, unpack(unit, slot));
    } else {
      slot.acquired = true;
      unit_at(unit).slot = index;
    }
    unit_at(unit).storage->acquire(memory);
    return &unit_at(unit).storage->views();
  }

  void release(int unit) override {
    unit_at(unit).storage->release();
    const int index = std::exchange(unit_at(unit).slot, kNobody);
    if (index == kNobody) return;  // it was unpacked, and its slot is free since
    Slot& slot = slot_at(index);
    slot.used.record(c10::cuda::getCurrentCUDAStream());
    slot.acquired = false;
  }

  bool keeps(int unit, offload::PassDirection direction) const override {
    const Unit& it = units_[static_cast<std::size_t>(unit)];
    const bool forward = direction == offload::PassDirection::kForward;
    if (it.own_slot != kNobody) return true;
    if (model_.kind(unit).role() != UnitRole::kBlock)
      return !(forward && options_.ends_take_turns && model_.borrowed(model_.head()).empty());
    const int slots = footprint_.slots(UnitRole::kBlock, options_.block_slots);
    return forward ? it.streamed_rank < slots : it.streamed_rank >= streamed_blocks_ - slots;
  }
  void changed() override {
    for (auto& slot : slots_) {
      const bool updated_here =
          slot->owner != kNobody && !options_.residency.has_host_state(slot->owner);
      if (!updated_here) slot->unit = kNobody;
    }
  }

  void* resident_place(int unit) const override {
    const int own = units_[static_cast<std::size_t>(unit)].own_slot;
    return own == kNobody ? nullptr : slots_[static_cast<std::size_t>(own)]->memory;
  }
  Status read_resident(int unit, std::span<std::byte> to) const override {
    SLUICE_CHECK(resident_place(unit) != nullptr, "a unit that lives on the GPU");
    const cudaError_t copied =
        cudaMemcpy(to.data(), resident_place(unit), to.size(), cudaMemcpyDeviceToHost);
    if (copied == cudaSuccess) return {};
    return Error(ErrorCode::kInternal, "copying the parameters of " + model_.layout(unit).name +
                                           " from the GPU failed: " + cudaGetErrorString(copied));
  }
  Status fill_resident(int unit, std::uint64_t offset_bytes,
                       std::span<const std::byte> from) override {
    SLUICE_CHECK(resident_place(unit) != nullptr, "a unit that lives on the GPU");
    const cudaError_t copied =
        cudaMemcpy(static_cast<std::byte*>(resident_place(unit)) + offset_bytes, from.data(),
                   from.size(), cudaMemcpyHostToDevice);
    if (copied == cudaSuccess) return {};
    return Error(ErrorCode::kInternal, "copying the parameters of " + model_.layout(unit).name +
                                           " to the GPU failed: " + cudaGetErrorString(copied));
  }
  void expect_base(std::span<const int> order) override { expect_on_host(params_, order); }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Slot {
    UnitRole of = UnitRole::kBlock;
    int owner = kNobody;  // of a slot that is one unit's own
    void* memory = nullptr;
    int unit = kNobody;  // whose newest parameters it holds
    bool acquired = false;
    std::uint64_t last_use = 0;
    at::cuda::CUDAEvent loaded;
    at::cuda::CUDAEvent used;
  };
  struct Unit {
    std::unique_ptr<SlotStorage> storage;
    int slot = kNobody;  // while acquired, and computed with there
    int own_slot = kNobody;
    int streamed_rank = 0;  // of a block that shares slots: how many such blocks precede it
  };

  UnitRole role_of(int unit) const { return slot_role(model_, unit, options_.ends_take_turns); }
  Slot& slot_at(int index) { return *slots_[static_cast<std::size_t>(index)]; }
  Unit& unit_at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  Slot& add_slot(UnitRole of, void* memory) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->of = of;
    slots_.back()->memory = memory;
    return *slots_.back();
  }

  void make_resident_places() {
    const std::uint64_t bytes = footprint_.resident_bytes();
    if (bytes == 0) return;
    resident_ = zeroed(bytes);
    auto* place = static_cast<std::byte*>(resident_.data_ptr());
    for (int unit = 0; unit < model_.units(); ++unit) {
      if (!options_.residency.resident(unit)) continue;
      unit_at(unit).own_slot = static_cast<int>(slots_.size());
      Slot& slot = add_slot(role_of(unit), place);
      slot.owner = unit;
      if (!options_.residency.has_host_state(unit)) slot.unit = unit;  // set and updated there
      place += place_bytes(model_.layout(unit), options_.type);
    }
  }

  void rank_streamed_blocks() {
    for (int unit = 0; unit < model_.units(); ++unit)
      if (model_.kind(unit).role() == UnitRole::kBlock && unit_at(unit).own_slot == kNobody)
        unit_at(unit).streamed_rank = streamed_blocks_++;
  }

  int find(int unit) {
    const int own = unit_at(unit).own_slot;
    if (own != kNobody) return slot_at(own).unit == unit ? own : kNobody;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i]->unit == unit) return static_cast<int>(i);
    return kNobody;
  }

  // Its own, or the least recently used shared one of its class.
  int free_slot(int unit) {
    const int own = unit_at(unit).own_slot;
    if (own != kNobody) return own;
    int best = kNobody;
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = *slots_[i];
      const bool fits = slot.owner == kNobody && slot.of == role_of(unit);
      if (!fits || slot.acquired || slot.last_use >= oldest) continue;
      best = static_cast<int>(i);
      oldest = slot.last_use;
    }
    return best;
  }

  // The part of the unit that the host updates: all of it, unless some of its state is on the GPU.
  Status copy_to(Slot& slot, int unit, std::span<const std::byte> from) {
    const UnitLayout& layout = model_.layout(unit);
    if (is_packed(slot)) return copy_packed_to(slot, unit, from);
    const offload::ElementRange whole[] = {{.first = 0, .elements = layout.elements}};
    const bool partly = slot.owner != kNobody;
    const auto ranges = partly ? options_.residency.on_host(unit) : std::span(whole);
    const std::uint64_t width = offload::element_bytes(options_.type);
    std::uint64_t bytes = 0;
    for (const offload::ElementRange& range : ranges) bytes += range.elements * width;
    const CudaCopySpan span(
        {.trace = trace_, .track = TraceTrack::kH2d, .name = layout.name.c_str(), .bytes = bytes},
        copies_.stream());
    for (const offload::ElementRange& range : ranges) {
      const auto part = from.subspan(range.first * width, range.elements * width);
      const cudaError_t copied =
          cudaMemcpyAsync(static_cast<std::byte*>(slot.memory) + range.first * width, part.data(),
                          part.size(), cudaMemcpyHostToDevice, copies_.stream());
      if (copied != cudaSuccess) {
        return Error(ErrorCode::kInternal, "copying the parameters of " + layout.name +
                                               " to the GPU failed: " + cudaGetErrorString(copied));
      }
    }
    slot.loaded.record(copies_);
    copied_bytes_ += bytes;
    return {};
  }

  // Units of a base in 8 bits pass through the slots so.
  bool is_packed(const Slot& slot) const { return options_.base.is_int8 && slot.owner == kNobody; }

  Status copy_packed_to(Slot& slot, int unit, std::span<const std::byte> from) {
    const std::string& name = model_.layout(unit).name;
    const CudaCopySpan span(
        {.trace = trace_, .track = TraceTrack::kH2d, .name = name.c_str(), .bytes = from.size()},
        copies_.stream());
    const cudaError_t copied = cudaMemcpyAsync(slot.memory, from.data(), from.size(),
                                               cudaMemcpyHostToDevice, copies_.stream());
    if (copied != cudaSuccess) {
      return Error(ErrorCode::kInternal, "copying the parameters of " + name +
                                             " to the GPU failed: " + cudaGetErrorString(copied));
    }
    slot.loaded.record(copies_);
    copied_bytes_ += from.size();
    return {};
  }

  // Between what is computed, not beside it: a kernel of the copies' stream would take
  // multiprocessors from a product until its last tiles wait for them. The slot is free after it.
  Result<void*> unpack(int unit, Slot& slot) {
    const UnitLayout& layout = model_.layout(unit);
    const offload::Int8Blocks blocks = options_.base.blocks(layout);
    const c10::cuda::CUDAStream compute = c10::cuda::getCurrentCUDAStream();
    const auto* const packed = static_cast<const std::byte*>(slot.memory);
    at::Tensor& place = model_.lends(unit) ? unpacked_lender_ : unpacked_;
    auto* const out = static_cast<std::byte*>(place.data_ptr());
    SLUICE_RETURN_IF_ERROR(offload::dequantise_int8_cuda(
        {.quantised = reinterpret_cast<const std::int8_t*>(packed),
         .scales = reinterpret_cast<const float*>(packed + blocks.scales_offset()),
         .elements = blocks.elements,
         .form = options_.base.form,
         .out = out},
        compute.stream()));
    if (blocks.plain > 0) {
      const cudaError_t copied = cudaMemcpyAsync(
          out + blocks.elements * blocks.plain_bytes, packed + blocks.plain_offset(),
          blocks.plain * blocks.plain_bytes, cudaMemcpyDeviceToDevice, compute.stream());
      if (copied != cudaSuccess) {
        return Error(ErrorCode::kInternal, "copying the parameters of " + layout.name +
                                               " on the GPU failed: " + cudaGetErrorString(copied));
      }
    }
    slot.used.record(compute);
    return static_cast<void*>(out);
  }

  Status load(int unit, int index) {
    SLUICE_ASSIGN_OR_RETURN(auto lease, params_.acquire(unit, ParamOffloader::Access::kRead));
    Slot& slot = slot_at(index);
    slot.used.block(copies_);  // nothing, where it was never used
    SLUICE_RETURN_IF_ERROR(copy_to(slot, unit, lease.bytes()));
    slot.unit = unit;
    slot.last_use = ++uses_;
    // The host's copy may change only once the GPU has it.
    auto held = std::make_unique<ParamOffloader::Lease>(std::move(lease));
    const cudaError_t enqueued = cudaLaunchHostFunc(
        copies_.stream(), [](void* it) noexcept { delete static_cast<ParamOffloader::Lease*>(it); },
        held.get());
    if (enqueued == cudaSuccess) {
      static_cast<void>(held.release());
    } else {
      static_cast<void>(cudaStreamSynchronize(copies_.stream()));
    }
    return {};
  }

  const ModelLayout& model_;
  const CudaSlotOptions options_;
  const SlotFootprint footprint_;
  ParamOffloader& params_;
  TraceLog* const trace_;
  c10::cuda::CUDAStream copies_;
  at::Tensor resident_;             // the places of resident units, consecutively
  std::vector<at::Tensor> shared_;  // one a slot
  at::Tensor unpacked_lender_;      // UnpackedPlaces of a base in 8 bits; else empty
  at::Tensor unpacked_;
  std::vector<Unit> units_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int streamed_blocks_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<UnitParameters>> make_cuda_unit_parameters(const ModelLayout& model,
                                                                  const CudaSlotOptions& options,
                                                                  ParamOffloader& params,
                                                                  TraceLog* trace) {
  return std::unique_ptr<UnitParameters>(
      std::make_unique<CudaUnitParameters>(model, options, params, trace));
}

}  // namespace sluice::engine
