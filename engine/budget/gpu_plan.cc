#include "engine/budget/gpu_plan.h"

#include <algorithm>

#include "aio/units.h"
#include "offload/adamw/sum_nodes.h"
#include "offload/unit_shards.h"

namespace sluice::engine {
namespace {

// LibTorch aligns its own tensors to this.
constexpr std::uint64_t kPlaceAlignment = 512;
constexpr std::uint64_t kGradientAlignment = 4096;
// A stage that holds pieces has whole blocks of sums in any type of gradient.
constexpr std::uint64_t kPieceAlignment = offload::kSumBlockElements * sizeof(float);

// Elements of a rank's piece in one exchange of a unit's sum.
std::uint64_t exchanged_elements(const UnitLayout& layout, int world) {
  const std::uint64_t most =
      std::max(align_down(kExchangedBytes / sizeof(float) / static_cast<std::uint64_t>(world),
                          offload::kShardAlignment),
               offload::kShardAlignment);
  return std::min(offload::shard_piece_elements(layout.elements, world), most);
}

}  // namespace

// ---- parameters ------------------------------------------------------------------------------

std::uint64_t place_elements(const UnitLayout& unit, int world) {
  return std::max(unit.slot_elements, offload::gathered_elements(unit.elements, world));
}

std::uint64_t place_bytes(const UnitLayout& unit, offload::ElementType type, int world) {
  return align_up(place_elements(unit, world) * offload::element_bytes(type), kPlaceAlignment);
}

std::uint64_t shard_place_bytes(const UnitLayout& unit, offload::ElementType type, int world) {
  return align_up(
      offload::shard_piece_elements(unit.elements, world) * offload::element_bytes(type),
      kPlaceAlignment);
}

std::uint64_t copy_place_bytes(const UnitLayout& unit, const BaseForm& form,
                               const Gathering& gathering) {
  return align_up(copy_bytes(unit, form, gathering), kPlaceAlignment);
}

std::uint64_t streamed_bytes(const UnitLayout& unit, offload::ElementType type,
                             const BaseForm& base, int world) {
  return base.is_encoded() ? align_up(base.gathered_bytes(unit), kPlaceAlignment)
                           : place_bytes(unit, type, world);
}

void SharedBuffers::add(std::uint64_t place_bytes, bool stays_acquired) {
  std::uint64_t& largest = stays_acquired ? lender_ : other_;
  largest = std::max(largest, place_bytes);
}

UnpackedBuffers::UnpackedBuffers(const ModelLayout& base, offload::ElementType type) {
  for (int unit = 0; unit < base.units(); ++unit)
    add(place_bytes(base.layout(unit), type), base.stays_acquired(unit));
}

UnitRole slot_role(const ModelLayout& model, int unit, bool ends_take_turns) {
  const UnitRole role = model.kind(unit).role();
  const bool joins = ends_take_turns && role == UnitRole::kHead && model.borrowed(unit).empty();
  return joins ? UnitRole::kEmbedding : role;
}

void SlotFootprint::add(const Unit& unit, Stays stays) {
  if (stays == Stays::kAll || unit.place_bytes == 0) {
    resident_bytes_ += unit.place_bytes;
    return;
  }
  if (stays == Stays::kShard) shard_bytes_ += unit.shard_bytes;
  Streamed& streamed = streamed_[static_cast<std::size_t>(unit.role)];
  ++streamed.units;
  streamed.largest_bytes = std::max(streamed.largest_bytes, unit.streamed_bytes);
  if (unit.is_packed) unpacked_.add(unit.place_bytes, unit.stays_acquired);
  pieces_bytes_ = std::max(pieces_bytes_, unit.pieces_bytes);
  copy_bytes_ += unit.copy_bytes;
}

SlotFootprint SlotFootprint::of(const ModelLayout& model, const CudaSlotOptions& options) {
  SlotFootprint all;
  const int world = options.ranks.world;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    all.add(
        {.role = slot_role(model, unit, options.ends_take_turns),
         .stays_acquired = model.stays_acquired(unit),
         .place_bytes = place_bytes(layout, options.type, world),
         .streamed_bytes = streamed_bytes(layout, options.type, options.base, world),
         .is_packed = options.base.is_encoded(),
         .shard_bytes = shard_place_bytes(layout, options.type, world),
         .pieces_bytes =
             options.gathering.in_int8 ? sent_bytes(layout, options.form(), options.gathering) : 0,
         .copy_bytes = copy_place_bytes(layout, options.form(), options.gathering)},
        options.residency.resident(unit)      ? Stays::kAll
        : options.residency.keeps_shard(unit) ? Stays::kShard
                                              : Stays::kNothing);
  }
  return all;
}

int SlotFootprint::slots(UnitRole role, int block_slots) const {
  const int streamed = at(role).units;
  return std::min(role == UnitRole::kBlock ? block_slots : 1, streamed);
}

std::uint64_t SlotFootprint::all_slot_bytes(int block_slots) const {
  std::uint64_t total = unpacked_.bytes() + pieces_bytes_;
  for (const UnitRole role : kSlotRoles)
    total += slot_bytes(role) * static_cast<std::uint64_t>(slots(role, block_slots));
  return total;
}

// ---- gradients -------------------------------------------------------------------------------

GatheredBuffers::GatheredBuffers(const ModelLayout& model, offload::ElementType type, int world) {
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements = offload::gathered_elements(model.layout(unit).elements, world);
    add(elements * offload::element_bytes(type), model.stays_acquired(unit));
  }
}

GatheredBuffers::GatheredBuffers(const ModelLayout& base, const BaseForm& form,
                                 const Gathering& gathering) {
  const bool gathers = form.is_sharded() || gathering.in_int8;
  for (int unit = 0; gathers && unit < base.units(); ++unit)
    add(form.gathered_bytes(base.layout(unit)), base.stays_acquired(unit));
}

std::uint64_t pieces_buffer_bytes(const ModelLayout& model, const BaseForm& form,
                                  const Gathering& gathering) {
  std::uint64_t most = 0;
  for (int unit = 0; gathering.in_int8 && unit < model.units(); ++unit)
    most = std::max(most, sent_bytes(model.layout(unit), form, gathering));
  return most;
}

UnitGradientBytes unit_gradient_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums, int unit,
                                      const offload::RankPart& ranks) {
  const UnitLayout& layout = model.layout(unit);
  const offload::UnitShard shard = offload::shard_of(layout.elements, ranks);
  const std::uint64_t gradient = shard.elements * offload::element_bytes(type);
  const auto levels = static_cast<std::uint64_t>(sums.levels) * sizeof(float);
  const auto kept = static_cast<std::uint64_t>(sums.kept) * sizeof(float);
  return {.is_block = model.is_block(unit),
          .borrowed_sums = levels * model.borrowed_sums(unit).slot_elements,
          .accumulators = levels * place_elements(layout, ranks.world),
          .stage = gradient,
          .gradient = align_up(gradient, kGradientAlignment),
          .kept_sums = align_up(kept * layout.elements, kGradientAlignment),
          .square_sums = align_up(
              offload::sum_node_count(shard.first_element, shard.elements) * sizeof(double),
              kGradientAlignment),
          .exchanged = offload::SumOrder::exchange_bytes(sums, ranks,
                                                         exchanged_elements(layout, ranks.world)),
          .reduced_shard =
              ranks.world > 1 && model.has_borrowers(unit)
                  ? offload::shard_piece_elements(layout.elements, ranks.world) * sizeof(float)
                  : 0};
}

void SinkFootprint::add(const UnitGradientBytes& unit, bool gpu_state, bool host_state) {
  borrowed_sums_ += unit.borrowed_sums;
  exchanged_ = std::max(exchanged_, unit.exchanged);
  reduced_shard_ = std::max(reduced_shard_, unit.reduced_shard);
  if (takes_turns(host_state))
    shared_ = std::max(shared_, unit.accumulators);
  else
    own_sums_ += unit.accumulators;
  if (!gpu_state) {
    largest_stage_ = std::max(largest_stage_, unit.stage);
    if (unit.is_block) block_stage_ = std::max(block_stage_, unit.stage);
  }
  kept_ += kept_bytes(unit, gpu_state);
  square_sums_ += unit.square_sums;
  if (!is_on_nvme_) host_ += host_gradient_bytes(unit, gpu_state, host_state);
  host_ += unit.square_sums;
}

std::uint64_t SinkFootprint::stage_bytes() const {
  const std::uint64_t piece = align_up(std::max(block_stage_, kLeastPieceBytes), kPieceAlignment);
  return std::min(largest_stage_, piece);
}

SinkFootprint SinkFootprint::of(const ModelLayout& model, const CudaSinkOptions& options) {
  SinkFootprint all(options.sums, options.ranks.world, options.on_nvme);
  for (int unit = 0; unit < model.units(); ++unit)
    all.add(unit_gradient_bytes(model, options.type, options.sums, unit, options.ranks),
            options.residency.has_gpu_state(unit), options.residency.has_host_state(unit));
  return all;
}

}  // namespace sluice::engine
