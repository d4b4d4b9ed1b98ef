// FrozenState: where a frozen generation of the nvme tier's state is (swap/frozen_store.h). For
// each record of state it has its elements, and the record of the same elements' parameters. The
// state of the forms kSplit and kFp32 lacks them: they are the upper half of the master, or all.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "offload/element_types.h"
#include "swap/frozen_store.h"

namespace sluice::offload {

constexpr bool has_parameter_records(const StateForm& form) {
  return form.param != ParamForm::kFp32AndFp16;
}

constexpr std::uint64_t parameter_bytes(const StateForm& form, std::uint64_t elements) {
  return elements * static_cast<std::uint64_t>(param_bytes_per_element(form.param));
}
inline constexpr int kParameterBuffers = 2;  // pinned: one is filled while another is written

struct FrozenState {
  struct Part {
    int unit = 0;
    std::uint64_t first_element = 0;  // in the unit's shard
    std::uint64_t elements = 0;
    swap::RecordId state = 0;
    std::optional<swap::RecordId> parameters;
  };

  swap::FrozenStore store;
  StateForm form;
  std::vector<Part> parts;  // in ascending order
};

}  // namespace sluice::offload
