#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/device/cuda_copy_span.h"
#include "engine/device/cuda_host_copies.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_rank_link.h"
#include "engine/step/cuda_step.h"
#include "engine/step/cuda_unit_gather.h"
#include "offload/params/block_codec.h"
#include "offload/params/block_codec_cuda.h"

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
                     CudaRankLink* link, TraceLog* trace)
      : model_(model),
        options_(std::move(options)),
        footprint_(SlotFootprint::of(model, options_)),
        params_(params),
        link_(link),
        trace_(trace),
        copies_(c10::cuda::getStreamFromPool(true)),
        from_host_(copies_.stream()) {
    const at::Device device(at::kCUDA, c10::cuda::current_device());
    for (int unit = 0; unit < model.units(); ++unit)
      units_.push_back(
          {std::make_unique<SlotStorage>(model.layout(unit), scalar_type(options_.type), device)});
    make_resident_places();
    make_shard_places();
    for (const UnitRole of : kSlotRoles) {
      for (int i = 0; i < footprint_.slots(of, options_.block_slots); ++i) {
        shared_.push_back(zeroed(footprint_.slot_bytes(of)));
        add_slot(of, shared_.back().data_ptr());
      }
    }
    unpacked_lender_ = zeroed(footprint_.unpacked().lender_bytes());
    unpacked_ = zeroed(footprint_.unpacked().other_bytes());
    if (link_ != nullptr) gather_.emplace(model, options_, *link_, trace);
    rank_streamed_blocks();
  }

  // Host functions on this stream hold leases of the offloader.
  ~CudaUnitParameters() override { static_cast<void>(cudaStreamSynchronize(copies_.stream())); }

  Status prefetch(int unit) override {
    const int there = find(unit);
    if (there != kNobody) {
      slot_at(there).last_use = ++uses_;  // needed sooner than units used since
      return {};
    }
    if (link_ == nullptr && !params_.in_memory(unit)) {
      params_.prefetch(unit);
      return {};
    }
    const int index = free_slot(unit);
    return index == kNobody ? Status() : load(unit, index);
  }

  bool prefetch_gathers() const override { return link_ != nullptr; }

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
    if (index == kNobody) return;  // it was unpacked, which freed its slot
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
  void invalidate() override {
    if (gather_) gather_->invalidate();
    for (auto& slot : slots_) {
      const bool stays = link_ == nullptr && slot->owner != kNobody &&
                         !options_.residency.has_host_state(slot->owner);
      const bool never_changes = options_.is_frozen && slot->owner != kNobody;
      if (!stays && !never_changes) slot->unit = kNobody;
    }
  }

  void* shard_place(int unit) const override {
    const Unit& it = units_[static_cast<std::size_t>(unit)];
    if (it.own_slot == kNobody) return it.shard;
    void* const place = slots_[static_cast<std::size_t>(it.own_slot)]->memory;
    return options_.is_frozen ? place : piece_in(place, unit);
  }
  Status read_shard(int unit, std::span<std::byte> to) const override {
    SLUICE_CHECK(shard_place(unit) != nullptr, "a unit that lives on the GPU");
    if (link_ != nullptr) static_cast<void>(cudaStreamSynchronize(link_->stream().stream()));
    const cudaError_t copied =
        cudaMemcpy(to.data(), shard_place(unit), to.size(), cudaMemcpyDeviceToHost);
    if (copied == cudaSuccess) return {};
    return Error(ErrorCode::kInternal, "copying the parameters of " + model_.layout(unit).name +
                                           " from the GPU failed: " + cudaGetErrorString(copied));
  }
  Status fill_resident(int unit, std::uint64_t offset_bytes,
                       std::span<const std::byte> from) override {
    SLUICE_CHECK(shard_place(unit) != nullptr, "a unit that lives on the GPU");
    const cudaError_t copied = cudaMemcpy(static_cast<std::byte*>(shard_place(unit)) + offset_bytes,
                                          from.data(), from.size(), cudaMemcpyHostToDevice);
    if (copied == cudaSuccess) return {};
    return Error(ErrorCode::kInternal, "copying the parameters of " + model_.layout(unit).name +
                                           " to the GPU failed: " + cudaGetErrorString(copied));
  }
  void expect_base(std::span<const int> order) override { expect_on_host(params_, order); }
  std::uint64_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Slot {
    UnitRole of = UnitRole::kBlock;
    int owner = kNobody;  // the only unit that uses this slot
    void* memory = nullptr;
    int unit = kNobody;  // the unit whose newest parameters it holds
    bool acquired = false;
    std::uint64_t last_use = 0;
    at::cuda::CUDAEvent loaded;
    at::cuda::CUDAEvent used;
  };
  struct Unit {
    std::unique_ptr<SlotStorage> storage;
    int slot = kNobody;  // while the unit is acquired and computed there
    int own_slot = kNobody;
    std::byte* shard = nullptr;  // its shard's place, if it has no slot of its own
    int streamed_rank = 0;  // for a block that shares slots: the number of such blocks before it
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
      const bool updated_here = link_ == nullptr && !options_.residency.has_host_state(unit);
      if (updated_here || options_.is_frozen) slot.unit = unit;  // set in place
      place += place_bytes(model_.layout(unit), options_.type, options_.ranks.world);
    }
  }

  void make_shard_places() {
    const std::uint64_t bytes = footprint_.shard_bytes();
    if (bytes == 0) return;
    shards_ = zeroed(bytes);
    auto* place = static_cast<std::byte*>(shards_.data_ptr());
    for (int unit = 0; unit < model_.units(); ++unit) {
      if (!options_.residency.keeps_shard(unit)) continue;
      unit_at(unit).shard = place;
      place += shard_place_bytes(model_.layout(unit), options_.type, options_.ranks.world);
    }
  }

  // ---- shards

  // The width of the values in slots: parameters, or bytes of an encoded base.
  std::uint64_t width() const {
    return options_.base.is_encoded() ? 1 : offload::element_bytes(options_.type);
  }
  std::uint64_t elements_of(int unit) const {
    const UnitLayout& layout = model_.layout(unit);
    return options_.base.is_encoded() ? options_.base.host_elements(layout) : layout.elements;
  }
  std::uint64_t shard_elements(int unit) const {
    return offload::shard_of(elements_of(unit), options_.ranks).elements;
  }
  std::uint64_t piece_bytes(int unit) const {
    return offload::shard_piece_elements(elements_of(unit), options_.ranks.world) * width();
  }
  // This rank's part of a place in which the whole unit is gathered.
  std::byte* piece_in(void* place, int unit) const {
    return static_cast<std::byte*>(place) +
           static_cast<std::uint64_t>(options_.ranks.rank) * piece_bytes(unit);
  }
  // The shard's place before it is gathered in the slot.
  std::byte* shard_of(const Slot& slot, int unit) const {
    std::byte* const own = units_[static_cast<std::size_t>(unit)].shard;
    return own != nullptr ? own : piece_in(slot.memory, unit);
  }
  // Whether the host has parameters of the unit that the GPU lacks.
  bool comes_from_host(int unit) const {
    if (link_ == nullptr) return true;  // else it would be in its slot
    return shard_elements(unit) > 0 && params_.on_host(unit);
  }

  // Runs after the copy, if any, into the slot's piece.
  Status gather(Slot& slot, int unit) {
    if (link_ == nullptr) return {};
    slot.used.block(link_->stream());
    if (options_.ranks.world == 1) {  // updates of state on the GPU are on the compute stream
      linked_.record(c10::cuda::getCurrentCUDAStream());
      linked_.block(link_->stream());
    }
    SLUICE_RETURN_IF_ERROR(gather_->gather(unit, {shard_of(slot, unit), piece_bytes(unit)},
                                           static_cast<std::byte*>(slot.memory)));
    slot.loaded.record(link_->stream());
    return {};
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

  // The unit's own slot, or the least recently used shared slot of its role.
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

  // Copies the part of the unit that the host updates: all of it, unless some state is on the GPU.
  Status copy_to(Slot& slot, int unit, std::span<const std::byte> from) {
    const UnitLayout& layout = model_.layout(unit);
    if (is_packed(slot)) return copy_packed_to(slot, unit, from);
    const offload::ElementRange whole[] = {{.first = 0, .elements = shard_elements(unit)}};
    const bool partly = slot.owner != kNobody || unit_at(unit).shard != nullptr;
    const auto ranges = partly ? options_.residency.on_host(unit) : std::span(whole);
    std::byte* const to = shard_of(slot, unit);
    std::uint64_t bytes = 0;
    for (const offload::ElementRange& range : ranges) bytes += range.elements * width();
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kH2d,
                             .phase = "parameters",
                             .name = layout.name.c_str(),
                             .bytes = bytes},
                            copies_.stream());
    for (const offload::ElementRange& range : ranges) {
      const auto part = from.subspan(range.first * width(), range.elements * width());
      SLUICE_RETURN_IF_ERROR(copy_in(unit, to + range.first * width(), part));
    }
    slot.loaded.record(copies_);
    copied_bytes_ += bytes;
    return {};
  }

  Status copy_in(int unit, std::byte* to, std::span<const std::byte> from) {
    Status copied = from_host_.in(to, from);
    if (copied.ok()) return copied;
    return std::move(copied).error().with_context("parameters of " + model_.layout(unit).name);
  }

  // Whether the slot holds a unit of a base in its encoded form.
  bool is_packed(const Slot& slot) const {
    return options_.base.is_encoded() && slot.owner == kNobody;
  }

  Status copy_packed_to(Slot& slot, int unit, std::span<const std::byte> from) {
    const std::string& name = model_.layout(unit).name;
    const CudaCopySpan span({.trace = trace_,
                             .track = TraceTrack::kH2d,
                             .phase = "parameters",
                             .name = name.c_str(),
                             .bytes = from.size()},
                            copies_.stream());
    SLUICE_RETURN_IF_ERROR(copy_in(unit, shard_of(slot, unit), from));
    slot.loaded.record(copies_);
    copied_bytes_ += from.size();
    return {};
  }

  // Runs on the compute stream, between passes. On the copies' stream this kernel would take
  // multiprocessors from a product until its last tiles wait for them. The slot is free afterwards.
  Result<void*> unpack(int unit, Slot& slot) {
    const UnitLayout& layout = model_.layout(unit);
    const offload::EncodedUnit encoded = options_.base.encoded(layout);
    const c10::cuda::CUDAStream compute = c10::cuda::getCurrentCUDAStream();
    const auto* const packed = static_cast<const std::byte*>(slot.memory);
    at::Tensor& place = model_.stays_acquired(unit) ? unpacked_lender_ : unpacked_;
    auto* const out = static_cast<std::byte*>(place.data_ptr());
    Status expanded;
    options_.base.for_each_run(layout, [&](const offload::EncodedRun& run) {
      const auto from = offload::EncodedIn::of(encoded, run, packed);
      if (!expanded.ok()) return;
      expanded = offload::decode_cuda({.codec = encoded.codec,
                                       .codes = from.codes,
                                       .scales = from.scales,
                                       .groups = from.groups,
                                       .elements = run.elements,
                                       .form = options_.base.form,
                                       .out = out + run.first * encoded.plain_bytes},
                                      compute.stream());
    });
    SLUICE_RETURN_IF_ERROR(expanded);
    if (encoded.plain > 0) {
      const cudaError_t copied = cudaMemcpyAsync(
          out + encoded.elements * encoded.plain_bytes, packed + encoded.plain_offset(),
          encoded.plain * encoded.plain_bytes, cudaMemcpyDeviceToDevice, compute.stream());
      if (copied != cudaSuccess) {
        return Error(ErrorCode::kInternal, "copying the parameters of " + layout.name +
                                               " on the GPU failed: " + cudaGetErrorString(copied));
      }
    }
    slot.used.record(compute);
    return static_cast<void*>(out);
  }

  Status load(int unit, int index) {
    Slot& slot = slot_at(index);
    const bool has_copy = gather_ && gather_->has_copy(unit);
    if (comes_from_host(unit) && !has_copy) SLUICE_RETURN_IF_ERROR(copy_from_host(slot, unit));
    SLUICE_RETURN_IF_ERROR(gather(slot, unit));
    slot.unit = unit;
    slot.last_use = ++uses_;
    return {};
  }

  Status copy_from_host(Slot& slot, int unit) {
    SLUICE_ASSIGN_OR_RETURN(auto lease, params_.acquire(unit, ParamOffloader::Access::kRead));
    slot.used.block(copies_);  // no-op if it was never used
    // A gather that nothing used may still be running.
    if (link_ != nullptr) slot.loaded.block(copies_);
    // The last gather from this shard must have read it.
    if (link_ != nullptr && unit_at(unit).shard != nullptr) {
      linked_.record(link_->stream());
      linked_.block(copies_);
    }
    SLUICE_RETURN_IF_ERROR(copy_to(slot, unit, lease.bytes()));
    if (link_ != nullptr) slot.loaded.block(link_->stream());
    // The host's copy may change only once the GPU has read it.
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
  CudaRankLink* const link_;  // null: there is one rank
  TraceLog* const trace_;
  c10::cuda::CUDAStream copies_;
  CudaHostCopies from_host_;
  at::cuda::CUDAEvent linked_;
  at::Tensor resident_;             // places of resident units, consecutive
  at::Tensor shards_;               // places of shards, consecutive
  std::vector<at::Tensor> shared_;  // one per slot
  at::Tensor unpacked_lender_;      // UnpackedBuffers of an encoded base; else empty
  at::Tensor unpacked_;
  std::optional<CudaUnitGather> gather_;  // none: there is one rank, and nothing is rounded
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
                                                                  CudaRankLink* link,
                                                                  TraceLog* trace) {
  return std::unique_ptr<UnitParameters>(
      std::make_unique<CudaUnitParameters>(model, options, params, link, trace));
}

}  // namespace sluice::engine
