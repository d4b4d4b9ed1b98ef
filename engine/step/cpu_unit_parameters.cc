#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "engine/budget/gpu_plan.h"
#include "engine/model/torch_types.h"
#include "engine/step/unit_parameters.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kChunksPerTask = 4;

at::Tensor zeroed(std::uint64_t bytes) {
  return at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

// Expands chunks [first, end) of a run to `to`, where the run's first value is.
void expand_chunks(const BaseForm& form, const offload::EncodedRun& run,
                   const offload::EncodedIn& from, std::byte* to, std::uint64_t first,
                   std::uint64_t end) {
  const std::uint64_t width = offload::element_bytes(offload::compute_type(form.form));
  std::array<float, kParameterAlignment> values;  // whole blocks of every codec
  const std::uint64_t until = std::min(end * offload::kCodecChunk, run.elements);
  for (std::uint64_t at = first * offload::kCodecChunk; at < until; at += values.size()) {
    offload::decode(form.codec, from, at / form.row().block, values);
    offload::pack_parameters(form.form, values, to + at * width);
  }
}

}  // namespace

CpuUnitParameters::CpuUnitParameters(const ModelLayout& model, const BaseForm& form,
                                     offload::ParamOffloader& params, Communicator& link)
    : model_(model),
      form_(form),
      params_(params),
      link_(link),
      slots_(static_cast<std::size_t>(model.units())) {
  const offload::ElementType type = offload::compute_type(form.form);
  for (int unit = 0; unit < model.units(); ++unit) {
    slots_[static_cast<std::size_t>(unit)].storage =
        std::make_unique<SlotStorage>(model.layout(unit), scalar_type(type), at::Device(at::kCPU));
  }
  const GatheredBuffers shards(model, form);
  gathered_ = {zeroed(shards.lender_bytes()), zeroed(shards.other_bytes())};
  if (!form.is_encoded()) return;
  const UnpackedBuffers buffers(model, type);
  unpacked_ = {zeroed(buffers.lender_bytes()), zeroed(buffers.other_bytes())};
}

Status CpuUnitParameters::prefetch(int unit) {
  params_.prefetch(unit);
  return {};
}

void* CpuUnitParameters::made_of(int unit, std::span<const std::byte> bytes) {
  const UnitLayout& layout = model_.layout(unit);
  const offload::EncodedUnit encoded = form_.encoded(layout);
  std::byte* const to = buffer_of(unit, unpacked_);
  form_.for_each_run(layout, [&](const offload::EncodedRun& run) {
    const auto from = offload::EncodedIn::of(encoded, run, bytes.data());
    const std::uint64_t chunks = (run.elements + offload::kCodecChunk - 1) / offload::kCodecChunk;
    at::parallel_for(0, static_cast<std::int64_t>(chunks), kChunksPerTask,
                     [&](std::int64_t first, std::int64_t end) {
                       expand_chunks(form_, run, from, to + run.first * encoded.plain_bytes,
                                     static_cast<std::uint64_t>(first),
                                     static_cast<std::uint64_t>(end));
                     });
  });
  const auto plain = bytes.subspan(encoded.plain_offset(), encoded.plain * encoded.plain_bytes);
  std::copy(plain.begin(), plain.end(), to + encoded.elements * encoded.plain_bytes);
  return to;
}

std::byte* CpuUnitParameters::buffer_of(int unit, const Buffers& buffers) const {
  return static_cast<std::byte*>(
      (model_.stays_acquired(unit) ? buffers.lender : buffers.other).data_ptr());
}

// Gathers the unit from the hosts of all ranks, unless this one has all of it.
Result<std::span<std::byte>> CpuUnitParameters::gathered(int unit, std::span<std::byte> shard) {
  if (!form_.is_sharded()) return shard;
  const std::span<std::byte> all(buffer_of(unit, gathered_),
                                 form_.gathered_bytes(model_.layout(unit)));
  const std::uint64_t piece = all.size() / static_cast<std::uint64_t>(form_.ranks.world);
  const std::span<std::byte> mine =
      all.subspan(piece * static_cast<std::uint64_t>(form_.ranks.rank), piece);
  std::copy(shard.begin(), shard.end(), mine.begin());
  Status done = link_.all_gather(mine, all);
  if (!done.ok())
    return std::move(done).error().with_context("gathering unit " + model_.layout(unit).name);
  return all;
}

Result<const UnitViews*> CpuUnitParameters::acquire(int unit) {
  Slot& slot = slots_[static_cast<std::size_t>(unit)];
  SLUICE_ASSIGN_OR_RETURN(slot.lease,
                          params_.acquire(unit, offload::ParamOffloader::Access::kRead));
  SLUICE_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, gathered(unit, slot.lease.bytes()));
  const bool is_packed = form_.is_encoded() && !bytes.empty();
  void* const numbers = is_packed ? made_of(unit, bytes) : bytes.data();
  slot.storage->acquire(numbers);
  if (numbers != slot.lease.bytes().data()) slot.lease.release();  // they are in a buffer
  return &slot.storage->views();
}

void CpuUnitParameters::release(int unit) {
  Slot& slot = slots_[static_cast<std::size_t>(unit)];
  slot.storage->release();
  slot.lease.release();
}

}  // namespace sluice::engine
