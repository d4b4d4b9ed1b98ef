// TierState: the optimizer state that one tier holds; the offloader uses all three tiers through
// this interface.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "offload/adamw/isa.h"
#include "offload/state/state_sweep.h"
#include "offload/state/state_tiles.h"
#include "offload/state/unit_source.h"
#include "offload/state/unit_update.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

struct StateKind {
  StateForm form;
  GradType grad_type;
  Isa isa;
};

class TierState {
 public:
  virtual ~TierState() = default;
  // One step over everything that the tier holds of the unit.
  virtual Status update(const UnitUpdate& update) = 0;
  // Called for all sub-groups, in ascending order; the sweep sets their tiles.
  virtual Status restore(const SubGroup& sub_group, const UnitArrays& arrays,
                         StateSweep& sweep) = 0;
  // Called for all sub-groups, in ascending order; the sweep reads their tiles.
  virtual Status snapshot(const SubGroup& sub_group, const UnitArrays& arrays,
                          StateSweep& sweep) = 0;
  // Called for the sub-groups of the amended units only, in ascending order; the sweep modifies
  // their tiles.
  virtual Status amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) = 0;
};

// A tier's pieces of state in ascending order, indexed by unit. `Part` has a member first_element,
// counted in the unit's shard.
template <typename Part>
class UnitParts {
 public:
  void add(int unit, const Part& part) {
    end_unit(unit);
    parts_.push_back(part);
    ends_.back() = parts_.size();
  }
  std::span<const Part> of(int unit) const {
    const auto u = static_cast<std::size_t>(unit);
    if (u >= ends_.size()) return {};
    const std::size_t begin = u == 0 ? 0 : ends_[u - 1];
    return std::span(parts_).subspan(begin, ends_[u] - begin);
  }
  std::span<const Part> of(const SubGroup& sub_group) const {
    const std::span<const Part> unit = of(sub_group.unit);
    const auto position = [&](std::uint64_t element) {
      return std::lower_bound(
          unit.begin(), unit.end(), element,
          [](const Part& part, std::uint64_t wanted) { return part.first_element < wanted; });
    };
    return {position(sub_group.first_element),
            position(sub_group.first_element + sub_group.elements)};
  }
  std::span<const Part> all() const { return parts_; }

 private:
  void end_unit(int unit) { ends_.resize(static_cast<std::size_t>(unit) + 1, parts_.size()); }

  std::vector<Part> parts_;
  std::vector<std::size_t> ends_;  // for each unit up to the last one that has a part
};

inline void* param_at(ParamForm form, void* param, std::uint64_t element) {
  return static_cast<std::byte*>(param) +
         element * static_cast<std::uint64_t>(param_bytes_per_element(form));
}

// Adds to the arrays of a tier's state what a step also needs. `grad` is the unit's gradient; the
// arrays begin with the shard's `element`.
inline AdamwArrays step_arrays(AdamwArrays arrays, const StateKind& kind, const UnitUpdate& update,
                               const void* grad, std::uint64_t element) {
  arrays.grad_type = kind.grad_type;
  arrays.grad = static_cast<const std::byte*>(grad) + element * element_bytes(kind.grad_type);
  arrays.moment_keys = update.moment_keys;
  arrays.first_element = update.shard_element + element;
  return arrays;
}

}  // namespace sluice::offload
