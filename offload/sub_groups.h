// Units, how the optimizer cuts them into sub-groups, and each sub-group's tier: the placement.
//
// A sub-group is the unit of placement: a contiguous range of one unit's shard and of one parameter
// group (with its own learning rate and weight decay). How a unit is cut never changes a bit of the
// results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "offload/unit_shards.h"

namespace sluice::offload {

enum class Tier : std::uint8_t { kGpu, kCpu, kNvme };
std::string_view to_string(Tier tier);

struct GroupRange {
  int group = 0;               // which AdamwScalars of a step apply
  std::uint64_t elements = 0;  // starts where the previous range ends
};

struct UnitSpec {
  std::string name;
  // Covers the shard from its first to its last element; empty: nothing of it is trained.
  std::vector<GroupRange> ranges;
  // Optional ranges that select the AdamwScalars instead of `ranges`; sub-groups are not cut along
  // them. Empty: `ranges` applies.
  std::vector<GroupRange> scalars = {};
  std::uint64_t first_element = 0;  // of the shard, within the unit
  std::uint64_t elements() const;
};

// A rank's part of a whole unit.
UnitSpec shard_of(const UnitSpec& unit, const RankPart& part);

struct SubGroup {
  int unit = 0;
  int group = 0;
  std::uint64_t first_element = 0;  // in the unit's shard
  std::uint64_t elements = 0;
  Tier tier = Tier::kCpu;
};

struct TierFractions {
  double gpu = 0;
  double cpu = 1;
  double nvme = 0;
};

// Cuts every unit into sub-groups of at most `sub_group_elements`, in ascending order. Each gets a
// tier such that the tiers' shares of all elements so far stay as close to `fractions` as the cut
// allows. So each tier has work throughout a step. Returns kInvalidArgument for no unit with
// elements, an empty range, fractions that are negative or do not add up to 1, or a sub-group size
// of 0.
Result<std::vector<SubGroup>> place_by_fractions(std::span<const UnitSpec> units,
                                                 std::uint64_t sub_group_elements,
                                                 const TierFractions& fractions);

struct TierElements {  // one unit's elements in order: gpu first, then cpu, then nvme
  std::uint64_t gpu = 0;
  std::uint64_t cpu = 0;
  std::uint64_t nvme = 0;
};

// Cuts one unit into sub-groups, given the number of elements in each tier. Calls `sub_group(group,
// first_element, elements, tier)` for each, in ascending order. `elements` must add up to the
// ranges.
template <typename OnSubGroup>
void cut_unit(std::span<const GroupRange> ranges, std::uint64_t sub_group_elements,
              const TierElements& elements, const OnSubGroup& sub_group) {
  constexpr std::array<Tier, 3> kTiers = {Tier::kGpu, Tier::kCpu, Tier::kNvme};
  std::array<std::uint64_t, 3> left = {elements.gpu, elements.cpu, elements.nvme};
  std::size_t tier = 0;
  std::uint64_t first = 0;
  for (const GroupRange& range : ranges) {
    for (const std::uint64_t end = first + range.elements; first < end;) {
      while (left[tier] == 0) ++tier;
      const std::uint64_t count = std::min({sub_group_elements, end - first, left[tier]});
      sub_group(range.group, first, count, kTiers[tier]);
      left[tier] -= count;
      first += count;
    }
  }
}

// Like place_by_fractions(), but sub-groups also end where a tier ends. Also kInvalidArgument: a
// number of `elements` other than the number of units, or elements that do not add up to their
// unit.
Result<std::vector<SubGroup>> place_by_elements(std::span<const UnitSpec> units,
                                                std::uint64_t sub_group_elements,
                                                std::span<const TierElements> elements);

// kInvalidArgument unless the sub-groups cover each unit once, in order, within parameter groups.
Status check_placement(std::span<const UnitSpec> units, std::span<const SubGroup> placement);

}  // namespace sluice::offload
