// BaseForm: how the host stores the parameters of a frozen model whose adapters are trained: in the
// compute type, or in 8 bits that are expanded on their way (recipe.lora.base_bits). Resident units
// hold the expanded values, so a placement changes no bit.
//
// With several ranks at stage 3 each host stores a shard of a unit, a piece of those bytes. Units
// are gathered in the host's form. Resident units are whole on each rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/budget/run_spec.h"
#include "engine/model/unit_layout.h"
#include "offload/element_types.h"
#include "offload/params/int8_blocks.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

struct BaseForm {
  offload::ParamForm form = offload::ParamForm::kSplit;
  bool is_int8 = false;
  offload::RankPart ranks = {};  // the rank whose shards these are

  static BaseForm of(const RunSpec& spec) {
    return {.form = spec.types().form,
            .is_int8 = spec.model.has_frozen() && spec.config.lora.base_bits == kInt8Bits,
            .ranks = spec.base_ranks()};
  }
  // Requires is_int8.
  offload::Int8Blocks blocks(const UnitLayout& unit) const {
    static_assert(kParameterAlignment % offload::kInt8Block == 0);
    std::uint64_t matrices = unit.elements_of_group(kDecayed);
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.keeps_precision) matrices = std::min(matrices, parameter.first_element);
    return {.elements = matrices,
            .plain = unit.elements - matrices,
            .plain_bytes = offload::element_bytes(offload::compute_type(form))};
  }
  bool is_sharded() const { return ranks.world > 1; }
  // Bytes of a unit on the host; with shards, on the hosts of all ranks together.
  std::uint64_t bytes(const UnitLayout& unit) const {
    return is_int8 ? blocks(unit).bytes() : unpacked_bytes(unit);
  }
  // Bytes of a unit in the compute type.
  std::uint64_t unpacked_bytes(const UnitLayout& unit) const {
    return unit.elements * offload::element_bytes(offload::compute_type(form));
  }

  // Shards are counted in parameters, or in bytes if the base is in 8 bits. host_width() is the
  // size of one element in bytes.
  std::uint64_t host_elements(const UnitLayout& unit) const {
    return is_int8 ? blocks(unit).bytes() : unit.elements;
  }
  std::uint64_t host_width() const {
    return is_int8 ? 1 : offload::element_bytes(offload::compute_type(form));
  }
  offload::UnitShard shard(const UnitLayout& unit) const {
    return offload::shard_of(host_elements(unit), ranks);
  }
  std::uint64_t shard_bytes(const UnitLayout& unit) const {
    return shard(unit).elements * host_width();
  }
  // Bytes of all shards with their padding.
  std::uint64_t gathered_bytes(const UnitLayout& unit) const {
    return offload::gathered_elements(host_elements(unit), ranks.world) * host_width();
  }

  static constexpr int kInt8Bits = 8;
};

}  // namespace sluice::engine
