#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "aio/check.h"
#include "engine/budget/gpu_plan.h"
#include "engine/model/torch_types.h"
#include "engine/step/unit_parameters.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kChunksPerTask = 4;
constexpr std::int64_t kGroupsPerTask = 512;

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
                                     offload::ParamOffloader& params, Communicator& link,
                                     const Gathering& gathering)
    : model_(model),
      form_(form),
      gathering_(gathering),
      params_(params),
      link_(link),
      slots_(static_cast<std::size_t>(model.units())),
      copies_(model, form, gathering) {
  const offload::ElementType type = offload::compute_type(form.form);
  for (int unit = 0; unit < model.units(); ++unit) {
    slots_[static_cast<std::size_t>(unit)].storage =
        std::make_unique<SlotStorage>(model.layout(unit), scalar_type(type), at::Device(at::kCPU));
  }
  const GatheredBuffers shards(model, form, gathering);
  gathered_ = {zeroed(shards.lender_bytes()), zeroed(shards.other_bytes())};
  pieces_ = zeroed(pieces_buffer_bytes(model, form, gathering));
  parts_ = zeroed(copies_.bytes());
  SLUICE_CHECK(
      copies_.bytes() == 0 || link.world_size(ProcessGroup::kNode) == form.ranks.local_world(),
      "the plan knows how many ranks a host has");
  if (!form.is_encoded()) return;
  const UnpackedBuffers buffers(model, type);
  unpacked_ = {zeroed(buffers.lender_bytes()), zeroed(buffers.other_bytes())};
}

Status CpuUnitParameters::prefetch(int unit) {
  if (!copies_.has(unit)) params_.prefetch(unit);
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

// Gathers `all`, of equal pieces, from the ranks of this host if they have a copy, else from all
// ranks. put_piece() writes this rank's own.
template <typename PutPiece>
Status CpuUnitParameters::gather(int unit, std::span<std::byte> all, const PutPiece& put_piece) {
  const auto part_of = [&](int number, std::uint64_t bytes) {
    return all.subspan(static_cast<std::uint64_t>(number) * bytes, bytes);
  };
  const std::uint64_t part_bytes = copies_.may_keep(unit) ? copies_.part_bytes(unit) : 0;
  const std::span<std::byte> kept(
      static_cast<std::byte*>(parts_.data_ptr()) + (part_bytes > 0 ? copies_.offset(unit) : 0),
      part_bytes);
  const bool from_host = copies_.has(unit);
  const std::span<std::byte> mine =
      from_host
          ? part_of(link_.rank(ProcessGroup::kNode), part_bytes)
          : part_of(form_.ranks.rank, all.size() / static_cast<std::uint64_t>(form_.ranks.world));
  if (from_host)
    std::copy(kept.begin(), kept.end(), mine.begin());
  else
    put_piece(mine);
  Status done = link_.all_gather(mine, all,
                                 {.group = from_host ? ProcessGroup::kNode : ProcessGroup::kWorld});
  if (!done.ok())
    return std::move(done).error().with_context("gathering unit " + model_.layout(unit).name);
  if (from_host || part_bytes == 0) return {};
  const auto part = part_of(link_.rank(ProcessGroup::kNode), part_bytes);
  std::copy(part.begin(), part.end(), kept.begin());
  copies_.set(unit);
  return {};
}

// The unit's bytes on the hosts of all ranks, unless this one has all of it.
Result<std::span<std::byte>> CpuUnitParameters::gathered(int unit, std::span<std::byte> shard) {
  if (gathering_.in_int8) return gathered_in_int8(unit, shard);
  if (!form_.is_sharded()) return shard;
  const std::span<std::byte> all(buffer_of(unit, gathered_),
                                 form_.gathered_bytes(model_.layout(unit)));
  SLUICE_RETURN_IF_ERROR(gather(unit, all, [&](std::span<std::byte> mine) {
    std::copy(shard.begin(), shard.end(), mine.begin());
  }));
  return all;
}

// With one rank, too, so that it computes with the same values.
Result<std::span<std::byte>> CpuUnitParameters::gathered_in_int8(int unit,
                                                                 std::span<const std::byte> shard) {
  const UnitLayout& layout = model_.layout(unit);
  const offload::SentUnit sent = sent_unit(layout, form_.form, form_.ranks.world);
  const std::span<std::byte> pieces(static_cast<std::byte*>(pieces_.data_ptr()), sent.bytes());
  const auto each_group = [](std::uint64_t groups, const auto& work) {
    at::parallel_for(0, static_cast<std::int64_t>(groups), kGroupsPerTask,
                     [&](std::int64_t first, std::int64_t end) {
                       work(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(end));
                     });
  };
  SLUICE_RETURN_IF_ERROR(gather(unit, pieces, [&](std::span<std::byte> mine) {
    each_group(shard.size() / sent.width() / offload::kSentGroup,
               [&](std::uint64_t first, std::uint64_t end) {
                 offload::encode_groups(sent, form_.ranks.rank, shard, first, end, mine.data());
               });
  }));
  std::byte* const to = buffer_of(unit, gathered_);
  each_group(sent.groups(), [&](std::uint64_t first, std::uint64_t end) {
    offload::decode_groups(sent, pieces.data(), first, end, to);
  });
  return std::span<std::byte>(to, form_.gathered_bytes(layout));
}

Result<const UnitViews*> CpuUnitParameters::acquire(int unit) {
  Slot& slot = slots_[static_cast<std::size_t>(unit)];
  if (!copies_.has(unit)) {
    SLUICE_ASSIGN_OR_RETURN(slot.lease,
                            params_.acquire(unit, offload::ParamOffloader::Access::kRead));
  }
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
