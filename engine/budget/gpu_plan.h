// GPU memory and pinned host memory of a GPU run's parts, computed from sizes alone. So plans also
// work for a GPU that is not in the machine. engine/step/cuda_step.h allocates exactly these sizes.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "engine/budget/base_form.h"
#include "engine/budget/gathering.h"
#include "engine/model/model_layout.h"
#include "offload/element_types.h"
#include "offload/sum_order.h"
#include "offload/unit_residency.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

// Blocks share slots; the embedding and the head have one slot each, or share one. Resident units
// have their own buffer instead. Units without parameters have neither.
struct CudaSlotOptions {
  offload::ElementType type = offload::ElementType::kBf16;
  offload::ParamForm param_form = offload::ParamForm::kSplit;
  int block_slots = 3;  // one computed with, one copied into, one just used
  // The embedding and the head also share a slot, provided that the head borrows nothing. This
  // suits a step that needs each of them once and then changes both. A run that passes through the
  // units repeatedly with the same parameters would copy them each time.
  bool ends_take_turns = false;
  offload::UnitResidency residency;
  BaseForm base;  // of frozen parameters: the form that is copied into the slots
  // With several ranks a unit's shards are gathered in its slot or buffer.
  offload::RankPart ranks = {};
  Gathering gathering;
  bool is_frozen = false;  // resident units are whole from the start, and never change

  // The host's form of the units, whose shards are gathered.
  BaseForm form() const { return is_frozen ? base : BaseForm{.form = param_form, .ranks = ranks}; }
};
inline constexpr UnitRole kSlotRoles[] = {UnitRole::kEmbedding, UnitRole::kBlock, UnitRole::kHead};
// Units with the same role share slots.
UnitRole slot_role(const ModelLayout& model, int unit, bool ends_take_turns);

// Elements of a buffer for a whole unit, of parameters or of a sum, with the padding of shards.
std::uint64_t place_elements(const UnitLayout& unit, int world);
// Bytes of a unit's slot, or of its own buffer.
std::uint64_t place_bytes(const UnitLayout& unit, offload::ElementType type, int world = 1);
// Bytes of a shard's own buffer, if the shard stays on the GPU and the rest of the unit does not.
std::uint64_t shard_place_bytes(const UnitLayout& unit, offload::ElementType type, int world);
// Bytes of a rank's part of a copy on its host, which begins at a multiple of LibTorch's alignment.
std::uint64_t copy_place_bytes(const UnitLayout& unit, const BaseForm& form,
                               const Gathering& gathering);
// Bytes that a unit takes in a slot in the host's form: less than place_bytes() for an 8-bit base.
std::uint64_t streamed_bytes(const UnitLayout& unit, offload::ElementType type,
                             const BaseForm& base, int world = 1);

// Two shared buffers: one for the unit that stays_acquired(), which is acquired together with
// others, and one for all other units. Each is as large as its largest unit.
class SharedBuffers {
 public:
  void add(std::uint64_t place_bytes, bool stays_acquired);
  std::uint64_t lender_bytes() const { return lender_; }
  std::uint64_t other_bytes() const { return other_; }
  std::uint64_t bytes() const { return lender_ + other_; }

 private:
  std::uint64_t lender_ = 0;
  std::uint64_t other_ = 0;
};

// Buffers in which an encoded base is expanded to the compute type, each time a unit is acquired.
struct UnpackedBuffers : SharedBuffers {
  UnpackedBuffers() = default;
  UnpackedBuffers(const ModelLayout& base, offload::ElementType type);  // of all units
};

// If the host computes: buffers in which units are gathered from several ranks, with shard padding.
struct GatheredBuffers : SharedBuffers {
  GatheredBuffers(const ModelLayout& model, offload::ElementType type, int world);
  // Empty, unless units are gathered or rounded.
  GatheredBuffers(const ModelLayout& base, const BaseForm& form, const Gathering& gathering = {});
};
// The buffer for a unit's pieces in 8 bits: the largest unit's. 0: units are sent as they are.
std::uint64_t pieces_buffer_bytes(const ModelLayout& model, const BaseForm& form,
                                  const Gathering& gathering);

// Bytes of slots and buffers, added up unit by unit. The parts allocate exactly this, and plans
// compute it for the placements that they consider; the same holds for SinkFootprint.
class SlotFootprint {
 public:
  struct Unit {
    UnitRole role = UnitRole::kBlock;  // slot_role()
    bool stays_acquired = false;
    std::uint64_t place_bytes = 0;
    std::uint64_t streamed_bytes = 0;
    bool is_packed = false;          // encoded: expanded in UnpackedBuffers
    std::uint64_t shard_bytes = 0;   // a buffer of the shard's own
    std::uint64_t pieces_bytes = 0;  // while it is gathered in 8 bits
    std::uint64_t copy_bytes = 0;    // copy_place_bytes()
  };
  enum class Stays : std::uint8_t { kNothing, kShard, kAll };  // the parameters kept on the GPU
  void add(const Unit& unit, Stays stays);
  static SlotFootprint of(const ModelLayout& model, const CudaSlotOptions& options);

  // Slots of a role, where blocks have at most `block_slots`.
  int slots(UnitRole role, int block_slots) const;
  std::uint64_t slot_bytes(UnitRole role) const { return at(role).largest_bytes; }
  const UnpackedBuffers& unpacked() const { return unpacked_; }
  std::uint64_t all_slot_bytes(int block_slots) const;  // with the unpacked buffers
  std::uint64_t resident_bytes() const { return resident_bytes_; }
  std::uint64_t shard_bytes() const { return shard_bytes_; }    // buffers of shards
  std::uint64_t pieces_bytes() const { return pieces_bytes_; }  // one buffer; part of the slots
  std::uint64_t copy_bytes() const { return copy_bytes_; }      // on the GPU or in RAM

 private:
  struct Streamed {
    int units = 0;
    std::uint64_t largest_bytes = 0;
  };
  const Streamed& at(UnitRole role) const { return streamed_[static_cast<std::size_t>(role)]; }

  std::array<Streamed, std::size(kSlotRoles)> streamed_{};
  UnpackedBuffers unpacked_;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t shard_bytes_ = 0;
  std::uint64_t pieces_bytes_ = 0;
  std::uint64_t copy_bytes_ = 0;
};

// The gradient of a unit with state on the GPU stays there until its update; others pass through
// stages to the host. A stage holds a block's gradient. A larger gradient, of a head or an
// embedding with many rows, goes through in pieces, so that it does not determine the size of a
// stage.
//
// If a step has several waves, the fp32 sums of a unit without host state stay where they are.
// Other units' sums pass through slots, and are stored in the pinned memory that later holds their
// gradient.
//
// With several ranks a unit's sum is exchanged, piece by piece, for the shard of the sum over all
// ranks; everything after that applies to the shard. The exchange overlaps with the next unit's
// backward, so there are two slots.
struct CudaSinkOptions {
  offload::GradType type = offload::GradType::kBf16;
  offload::UnitResidency residency;
  offload::SumOrder order;
  offload::HeldSums sums;
  offload::RankPart ranks = {};
  bool on_nvme = false;  // the host's part is on NVMe instead of in memory (gradient_plan.h)
};
// All ranks' pieces together, in one exchange.
inline constexpr std::uint64_t kExchangedBytes = std::uint64_t{128} << 20;
inline constexpr int kSumSlots = 2;  // one is added to; the other's sum leaves and the next arrives
inline constexpr int kGradientStages = 2;  // one is filled while the other is copied out
// Minimum size of a stage for a gradient that is sent in pieces: whole blocks of SquareSum, and
// enough that the start of a copy costs little.
inline constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{128} << 20;

// Memory of one unit's gradient, wherever its state is.
struct UnitGradientBytes {
  bool is_block = false;
  std::uint64_t borrowed_sums = 0;
  std::uint64_t accumulators = 0;
  std::uint64_t stage = 0;
  std::uint64_t gradient = 0;     // kept on the GPU, or pinned on the host
  std::uint64_t kept_sums = 0;    // fp32, kept from wave to wave; pinned
  std::uint64_t square_sums = 0;  // on the GPU, and pinned
  // With several ranks, while the unit is reduced: the bytes received at a time, and this rank's
  // shard of the sum if other units borrow from the unit.
  std::uint64_t exchanged = 0;
  std::uint64_t reduced_shard = 0;
};
UnitGradientBytes unit_gradient_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums, int unit,
                                      const offload::RankPart& ranks = {});

class SinkFootprint {
 public:
  explicit SinkFootprint(const offload::HeldSums& sums, int world = 1, bool on_nvme = false)
      : keeps_sums_(sums.kept > 0), is_sharded_(world > 1), is_on_nvme_(on_nvme) {}

  // Adds a unit with state on the GPU, on the host, or both.
  void add(const UnitGradientBytes& unit, bool gpu_state, bool host_state);
  static SinkFootprint of(const ModelLayout& model, const CudaSinkOptions& options);

  // One stage: the largest gradient of a block that passes through, or a piece of a larger unit's.
  std::uint64_t stage_bytes() const;
  std::uint64_t kept_bytes() const { return kept_; }
  std::uint64_t gpu_bytes() const {
    return own_sums_ + borrowed_sums_ + static_cast<std::uint64_t>(shared_slots()) * shared_ +
           kGradientStages * stage_bytes() + kept_ + exchanged_ + reduced_shard_ + square_sums_;
  }
  std::uint64_t host_bytes() const { return host_; }
  // Elements of the accumulators in one shared slot. takes_turns(): whether a unit uses it.
  std::uint64_t shared_elements() const { return shared_ / sizeof(float); }
  int shared_slots() const { return keeps_sums_ || is_sharded_ ? kSumSlots : 1; }
  std::uint64_t exchanged_bytes() const { return exchanged_; }
  std::uint64_t reduced_shard_bytes() const { return reduced_shard_; }
  std::uint64_t square_sum_bytes() const { return square_sums_; }  // on the GPU, and on the host
  bool takes_turns(bool host_state) const { return host_state || !keeps_sums_; }

  // One unit's share. The host has no place for the gradient if the GPU updates all of the unit.
  // Its place on NVMe has the same size.
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
  bool is_on_nvme_;
  std::uint64_t exchanged_ = 0;
  std::uint64_t reduced_shard_ = 0;
  std::uint64_t square_sums_ = 0;
  std::uint64_t own_sums_ = 0;
  std::uint64_t borrowed_sums_ = 0;
  std::uint64_t shared_ = 0;
  std::uint64_t block_stage_ = 0;    // largest of a block
  std::uint64_t largest_stage_ = 0;  // of any unit
  std::uint64_t kept_ = 0;
  std::uint64_t host_ = 0;
};

}  // namespace sluice::engine
