// UnitUpdate: one unit's share of a step, and which scalars apply to which of its elements. Where
// ranges of other scalars begin never changes how state is cut or where it lies.
//
// Memory:  spans of what the offloader keeps during the step. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/adamw/adamw_arrays.h"
#include "offload/state/unit_source.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

// Begins where the one before ends.
struct ScalarRange {
  std::uint64_t end = 0;  // in the unit's shard
  int group = 0;
};

// UnitSpec::scalars; neighbours of one group are one range.
std::vector<ScalarRange> scalar_ranges(const UnitSpec& unit);

struct UnitUpdate {
  int unit = 0;
  std::span<const AdamwScalars> groups;  // by SubGroup::group or ScalarRange::group
  std::span<const ScalarRange> ranges;   // empty: a sub-group's own group applies
  UnitArrays arrays;
  MomentKeys moment_keys;           // of the unit and the step; bf16 moments
  std::uint64_t shard_element = 0;  // with which the arrays begin, in the unit; moments go by it

  struct Piece {
    const AdamwScalars& scalars;
    std::uint64_t end;  // in the unit's shard
  };
  // Of a sub-group of `group` whose elements [begin, end) are to be stepped: what applies from
  // `begin` on, and how far.
  Piece piece(int group, std::uint64_t begin, std::uint64_t end) const;
};

}  // namespace sluice::offload
