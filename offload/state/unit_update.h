// UnitUpdate: one unit's share of a step, and which scalars apply to which of its elements. The
// boundaries between scalar ranges never change how state is cut or where it is stored.
//
// Memory:  spans refer to data that the offloader keeps during the step. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/adamw/adamw_arrays.h"
#include "offload/state/unit_source.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

// Begins where the previous range ends.
struct ScalarRange {
  std::uint64_t end = 0;  // in the unit's shard
  int group = 0;
};

// UnitSpec::scalars, with adjacent ranges of one group merged.
std::vector<ScalarRange> scalar_ranges(const UnitSpec& unit);

struct UnitUpdate {
  int unit = 0;
  std::span<const AdamwScalars> groups;  // by SubGroup::group or ScalarRange::group
  std::span<const ScalarRange> ranges;   // empty: a sub-group's own group applies
  UnitArrays arrays;
  MomentKeys moment_keys;           // for this unit and step; used for bf16 moments
  std::uint64_t shard_element = 0;  // the arrays' first element, in the unit; keys rounding

  struct Piece {
    const AdamwScalars& scalars;
    std::uint64_t end;  // in the unit's shard
  };
  // For elements [begin, end) of a sub-group of `group`: the scalars that apply from `begin` on,
  // and the end of the range in which they do.
  Piece piece(int group, std::uint64_t begin, std::uint64_t end) const;
};

}  // namespace sluice::offload
