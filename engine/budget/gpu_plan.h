// What the parts of a run on the GPU take of its memory and of pinned host memory, from sizes
// alone: for plans, also of a GPU that is not in the machine. engine/step/cuda_step.h makes the
// parts, of just these sizes.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "engine/budget/base_form.h"
#include "engine/model/model_layout.h"
#include "offload/element_types.h"
#include "offload/sum_order.h"
#include "offload/unit_residency.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

// Blocks take turns in slots; the embedding and the head have one each, or one together. Resident
// units have a place of their own instead. Units without parameters have neither.
struct CudaSlotOptions {
  offload::ElementType type = offload::ElementType::kBf16;
  int block_slots = 3;  // computed with, copied into, just used
  // The embedding and the head take turns, too, where the head borrows nothing: for a step that
  // wants each once and then changes both. Who passes through the units again and again with the
  // same parameters would copy them each time.
  bool ends_take_turns = false;
  offload::UnitResidency residency;
  BaseForm base;  // of frozen parameters: what is copied into the slots
  // With several ranks a unit's shards are gathered in its place.
  offload::RankPart ranks = {};
  bool is_frozen =
      false;  // then resident units are whole from the beginning, and stay what they are
};
inline constexpr UnitRole kSlotRoles[] = {UnitRole::kEmbedding, UnitRole::kBlock, UnitRole::kHead};
// Units with the same one take turns in slots.
UnitRole slot_role(const ModelLayout& model, int unit, bool ends_take_turns);

// Of a place where all of a unit is, of parameters or of a sum: with the padding of shards.
std::uint64_t place_elements(const UnitLayout& unit, int world);
// A unit's place: in a slot, or of its own.
std::uint64_t place_bytes(const UnitLayout& unit, offload::ElementType type, int world = 1);
// Of a shard's parameters, where they stay on the GPU and the rest of the unit does not.
std::uint64_t shard_place_bytes(const UnitLayout& unit, offload::ElementType type, int world);
// In a slot, as it comes from the host: of a base in 8 bits less than its place.
std::uint64_t streamed_bytes(const UnitLayout& unit, offload::ElementType type,
                             const BaseForm& base, int world = 1);

// Two places that units take turns in: one for the unit that is_held(), since it is acquired with
// others, and one for all others. Each is as large as its largest unit.
class SharedPlaces {
 public:
  void add(std::uint64_t place_bytes, bool is_held);
  std::uint64_t lender_bytes() const { return lender_; }
  std::uint64_t other_bytes() const { return other_; }
  std::uint64_t bytes() const { return lender_ + other_; }

 private:
  std::uint64_t lender_ = 0;
  std::uint64_t other_ = 0;
};

// Where a base in 8 bits becomes what is computed with, each time a unit is acquired.
struct UnpackedPlaces : SharedPlaces {
  UnpackedPlaces() = default;
  UnpackedPlaces(const ModelLayout& base, offload::ElementType type);  // of all units
};

// Where units are gathered from several ranks, with the padding of shards, if the host computes.
struct GatheredPlaces : SharedPlaces {
  GatheredPlaces(const ModelLayout& model, offload::ElementType type, int world);
  GatheredPlaces(const ModelLayout& base, const BaseForm& form);  // nothing, unless it is_sharded()
};

// What slots and places take, as units are added. The parts are made of just this, and plans add it
// up for placements that they only consider; so does SinkFootprint.
class SlotFootprint {
 public:
  struct Unit {
    UnitRole role = UnitRole::kBlock;  // slot_role()
    bool is_held = false;
    std::uint64_t place_bytes = 0;
    std::uint64_t streamed_bytes = 0;
    bool is_packed = false;         // in 8 bits: it is computed with in UnpackedPlaces
    std::uint64_t shard_bytes = 0;  // of a place of its shard's own
  };
  enum class Stays : std::uint8_t { kNothing, kShard, kAll };  // on the GPU, of parameters
  void add(const Unit& unit, Stays stays);
  static SlotFootprint of(const ModelLayout& model, const CudaSlotOptions& options);

  // Of units of a role, where blocks have at most so many; and the bytes of one.
  int slots(UnitRole role, int block_slots) const;
  std::uint64_t slot_bytes(UnitRole role) const { return at(role).largest_bytes; }
  const UnpackedPlaces& unpacked() const { return unpacked_; }
  std::uint64_t all_slot_bytes(int block_slots) const;  // and those
  std::uint64_t resident_bytes() const { return resident_bytes_; }
  std::uint64_t shard_bytes() const { return shard_bytes_; }  // of places of shards

 private:
  struct Streamed {
    int units = 0;
    std::uint64_t largest_bytes = 0;
  };
  const Streamed& at(UnitRole role) const { return streamed_[static_cast<std::size_t>(role)]; }

  std::array<Streamed, std::size(kSlotRoles)> streamed_{};
  UnpackedPlaces unpacked_;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t shard_bytes_ = 0;
};

// The gradient of a unit with state on the GPU is kept there until its update; that of others
// passes through stages to the host. A stage holds a block's; a larger gradient, of a head or an
// embedding with many rows, goes through them in pieces, so that no stage is sized by it.
//
// Where a step has several waves, the fp32 sums of a unit without state on the host are kept where
// they are; those of others pass through slots, and lie in pinned memory where their gradient will
// lie.
//
// With several ranks the sum of a unit is exchanged for the sum of all ranks in the shard, piece by
// piece, and what follows is about that. It happens beside the next unit's backward, so there are
// two slots.
struct CudaSinkOptions {
  offload::GradType type = offload::GradType::kBf16;
  offload::UnitResidency residency;
  offload::SumOrder order;
  offload::HeldSums sums;
  offload::RankPart ranks = {};
};
// Of all ranks' pieces together, in one exchange.
inline constexpr std::uint64_t kExchangedBytes = std::uint64_t{128} << 20;
inline constexpr int kSumSlots = 2;  // one is added to; the other's sum leaves, and the next comes
inline constexpr int kGradientStages = 2;  // one is filled while the other is copied out
// The least that a stage holds of a gradient that is larger: whole blocks of SquareSum, and enough
// that a copy costs little to start.
inline constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{128} << 20;

// What the gradient of one unit takes, wherever its state is.
struct UnitGradientBytes {
  bool is_block = false;
  std::uint64_t borrowed_sums = 0;
  std::uint64_t accumulators = 0;
  std::uint64_t stage = 0;
  std::uint64_t gradient = 0;     // kept on the GPU, or pinned
  std::uint64_t kept_sums = 0;    // fp32, from wave to wave: pinned
  std::uint64_t square_sums = 0;  // pinned
  // With several ranks, while the unit is reduced: what comes from them at a time; and its shard of
  // the sum, where others borrow of it.
  std::uint64_t exchanged = 0;
  std::uint64_t reduced_shard = 0;
};
UnitGradientBytes unit_gradient_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums, int unit,
                                      const offload::RankPart& ranks = {});

class SinkFootprint {
 public:
  explicit SinkFootprint(const offload::HeldSums& sums, int world = 1)
      : keeps_sums_(sums.kept > 0), is_sharded_(world > 1) {}

  // A unit with state on the GPU, on the host, or both.
  void add(const UnitGradientBytes& unit, bool gpu_state, bool host_state);
  static SinkFootprint of(const ModelLayout& model, const CudaSinkOptions& options);

  // Of one: the largest gradient of a block that passes, or a piece of another unit's.
  std::uint64_t stage_bytes() const;
  std::uint64_t kept_bytes() const { return kept_; }
  std::uint64_t gpu_bytes() const {
    return own_sums_ + borrowed_sums_ + static_cast<std::uint64_t>(shared_slots()) * shared_ +
           kGradientStages * stage_bytes() + kept_ + exchanged_ + reduced_shard_;
  }
  std::uint64_t host_bytes() const { return host_; }
  // Of the accumulators of one slot that units take turns in; and whether a unit does.
  std::uint64_t shared_elements() const { return shared_ / sizeof(float); }
  int shared_slots() const { return keeps_sums_ || is_sharded_ ? kSumSlots : 1; }
  std::uint64_t exchanged_bytes() const { return exchanged_; }
  std::uint64_t reduced_shard_bytes() const { return reduced_shard_; }
  bool takes_turns(bool host_state) const { return host_state || !keeps_sums_; }

  // Of that, a unit's: nothing is pinned for the gradient where the GPU updates all of the unit.
  static std::uint64_t kept_bytes(const UnitGradientBytes& unit, bool gpu_state) {
    return gpu_state ? unit.gradient : 0;
  }
  std::uint64_t host_gradient_bytes(const UnitGradientBytes& unit, bool gpu_state,
                                    bool host_state) const {
    if (gpu_state && !host_state) return 0;
    return keeps_sums_ && host_state ? std::max(unit.gradient, unit.kept_sums) : unit.gradient;
  }

 private:
  bool keeps_sums_;
  bool is_sharded_;
  std::uint64_t exchanged_ = 0;
  std::uint64_t reduced_shard_ = 0;
  std::uint64_t own_sums_ = 0;
  std::uint64_t borrowed_sums_ = 0;
  std::uint64_t shared_ = 0;
  std::uint64_t block_stage_ = 0;    // the largest, of a block
  std::uint64_t largest_stage_ = 0;  // of any unit
  std::uint64_t kept_ = 0;
  std::uint64_t host_ = 0;
};

}  // namespace sluice::engine
