// BaseForm: how the host keeps the parameters of a frozen model, beside which adapters are trained:
// as they are computed with, or in 8 bits and made into that on their way (recipe.lora.base_bits).
// Resident units hold what comes of it, so that a placement changes no bit.
#pragma once

#include <cstdint>

#include "engine/budget/run_spec.h"
#include "engine/model/unit_layout.h"
#include "offload/element_types.h"
#include "offload/params/int8_blocks.h"

namespace sluice::engine {

struct BaseForm {
  offload::ParamForm form = offload::ParamForm::kSplit;
  bool is_int8 = false;

  static BaseForm of(const RunSpec& spec) {
    return {.form = spec.types().form,
            .is_int8 = spec.model.has_frozen() && spec.config.lora.base_bits == kInt8Bits};
  }
  // Where it is_int8.
  offload::Int8Blocks blocks(const UnitLayout& unit) const {
    static_assert(kParameterAlignment % offload::kInt8Block == 0);
    const std::uint64_t matrices = unit.elements_of_group(kDecayed);
    return {.elements = matrices,
            .plain = unit.elements - matrices,
            .plain_bytes = offload::element_bytes(offload::compute_type(form))};
  }
  // Of a unit on the host.
  std::uint64_t bytes(const UnitLayout& unit) const {
    return is_int8 ? blocks(unit).bytes() : unpacked_bytes(unit);
  }
  // Of one that is computed with.
  std::uint64_t unpacked_bytes(const UnitLayout& unit) const {
    return unit.elements * offload::element_bytes(offload::compute_type(form));
  }

  static constexpr int kInt8Bits = 8;
};

}  // namespace sluice::engine
