// Gathering: how ranks gather a unit, and what stays on a host until the unit changes. The scheme
// is ZeRO++'s (Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model
// Training", 2023).
//
// In 8 bits ("qwZ"): trained units are rounded by SentUnit, also by a single rank, so that the
// number of ranks changes no bit. A frozen base is stored in 8 bits instead (BaseForm).
//
// Copies ("hpZ"): with several hosts, a unit's first gather after a change goes over all hosts.
// Each rank then keeps an equal part of what was gathered, and later gathers stay on the host. A
// copy has the bytes that were sent.
//
// Threads: values.
#pragma once

#include <cstdint>

#include "engine/budget/base_form.h"
#include "engine/budget/run_spec.h"
#include "engine/config/config.h"
#include "engine/model/unit_layout.h"
#include "offload/params/sent_weights.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

struct Gathering {
  bool in_int8 = false;
  config::HostCopy copies = config::HostCopy::kOff;  // never kAuto

  bool keeps_copies() const { return copies != config::HostCopy::kOff; }
  // For the units that are streamed: the trained ones, or the frozen base.
  static Gathering of(const RunSpec& spec) {
    return {.in_int8 = spec.sends_int8(), .copies = spec.host_copies()};
  }
};

inline offload::SentUnit sent_unit(const UnitLayout& unit, offload::ParamForm form, int world) {
  const BaseForm codes{.codec = offload::BlockCodec::kInt8};
  return {.elements = unit.elements,
          .encoded = codes.encoded(unit).elements,
          .world = world,
          .form = form};
}

// Bytes of a gathered unit as they are sent: all ranks' pieces. `form` is the host's.
inline std::uint64_t sent_bytes(const UnitLayout& unit, const BaseForm& form,
                                const Gathering& gathering) {
  return gathering.in_int8 ? sent_unit(unit, form.form, form.ranks.world).bytes()
                           : form.gathered_bytes(unit);
}

// Bytes of a rank's part of its host's copy.
inline std::uint64_t copy_bytes(const UnitLayout& unit, const BaseForm& form,
                                const Gathering& gathering) {
  if (!gathering.keeps_copies() || !form.is_sharded()) return 0;
  return sent_bytes(unit, form, gathering) / static_cast<std::uint64_t>(form.ranks.local_world());
}

}  // namespace sluice::engine
