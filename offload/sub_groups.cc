#include "offload/sub_groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace sluice::offload {
namespace {

constexpr std::array<Tier, 3> kTiers = {Tier::kGpu, Tier::kCpu, Tier::kNvme};

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_ranges(const UnitSpec& unit, std::span<const GroupRange> ranges) {
  for (const GroupRange& range : ranges) {
    if (range.elements == 0) return invalid("unit " + unit.name + " has an empty range");
    if (range.group < 0)
      return invalid("unit " + unit.name + " names parameter group " + std::to_string(range.group) +
                     "; they count from 0");
  }
  return {};
}

Status check_units(std::span<const UnitSpec> units) {
  if (units.empty()) return invalid("there is no unit to place");
  for (const UnitSpec& unit : units) {
    SLUICE_RETURN_IF_ERROR(check_ranges(unit, unit.ranges));
    SLUICE_RETURN_IF_ERROR(check_ranges(unit, unit.scalars));
    std::uint64_t sum = 0;
    for (const GroupRange& range : unit.scalars) sum += range.elements;
    if (sum != 0 && sum != unit.elements())
      return invalid("unit " + unit.name + " has " + std::to_string(unit.elements()) +
                     " elements, and scalars for " + std::to_string(sum));
  }
  return {};
}

Status check_fractions(const std::array<double, 3>& fractions) {
  double sum = 0;
  for (std::size_t i = 0; i < kTiers.size(); ++i) {
    if (!(fractions[i] >= 0)) {
      return invalid("the fraction of tier " + std::string(to_string(kTiers[i])) + " is " +
                     std::to_string(fractions[i]) + "; it must be 0 or more");
    }
    sum += fractions[i];
  }
  if (!(std::fabs(sum - 1) < 1e-6))
    return invalid("the tiers' fractions add up to " + std::to_string(sum) + ", not to 1");
  return {};
}

// Gives the next piece to the tier that is furthest below its share.
class TierDealer {
 public:
  explicit TierDealer(const std::array<double, 3>& fractions) : fractions_(fractions) {}

  Tier deal(std::uint64_t elements) {
    total_ += static_cast<double>(elements);
    std::size_t furthest = 0;
    for (std::size_t i = 1; i < kTiers.size(); ++i)
      if (behind(i) > behind(furthest)) furthest = i;
    dealt_[furthest] += static_cast<double>(elements);
    return kTiers[furthest];
  }

 private:
  double behind(std::size_t tier) const { return fractions_[tier] * total_ - dealt_[tier]; }

  const std::array<double, 3> fractions_;
  double total_ = 0;
  std::array<double, 3> dealt_{};
};

std::string describe(std::span<const UnitSpec> units, const SubGroup& sub_group) {
  return "sub-group [" + std::to_string(sub_group.first_element) + ".." +
         std::to_string(sub_group.first_element + sub_group.elements) + ") of unit " +
         units[static_cast<std::size_t>(sub_group.unit)].name;
}

// Whether all of its elements belong to its parameter group.
bool within_its_group(const UnitSpec& unit, const SubGroup& sub_group) {
  std::uint64_t begin = 0;
  for (const GroupRange& range : unit.ranges) {
    const std::uint64_t end = begin + range.elements;
    const bool overlaps =
        begin < sub_group.first_element + sub_group.elements && sub_group.first_element < end;
    if (overlaps && range.group != sub_group.group) return false;
    begin = end;
  }
  return true;
}

}  // namespace

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::kGpu:
      return "gpu";
    case Tier::kCpu:
      return "cpu";
    case Tier::kNvme:
      return "nvme";
  }
  return "unknown";
}

std::uint64_t UnitSpec::elements() const {
  std::uint64_t sum = 0;
  for (const GroupRange& range : ranges) sum += range.elements;
  return sum;
}

UnitSpec shard_of(const UnitSpec& unit, const RankPart& part) {
  const UnitShard shard = shard_of(unit.elements(), part);
  const auto cut = [&](const std::vector<GroupRange>& ranges) {
    std::vector<GroupRange> inside;
    std::uint64_t begin = 0;
    for (const GroupRange& range : ranges) {
      const std::uint64_t end = begin + range.elements;
      const std::uint64_t first = std::max(begin, shard.first_element);
      const std::uint64_t last = std::min(end, shard.end());
      if (first < last) inside.push_back({.group = range.group, .elements = last - first});
      begin = end;
    }
    return inside;
  };
  return {.name = unit.name,
          .ranges = cut(unit.ranges),
          .scalars = cut(unit.scalars),
          .first_element = unit.first_element + shard.first_element};
}

Result<std::vector<SubGroup>> place_by_fractions(std::span<const UnitSpec> units,
                                                 std::uint64_t sub_group_elements,
                                                 const TierFractions& fractions) {
  SLUICE_RETURN_IF_ERROR(check_units(units));
  const std::array<double, 3> shares = {fractions.gpu, fractions.cpu, fractions.nvme};
  SLUICE_RETURN_IF_ERROR(check_fractions(shares));
  if (sub_group_elements == 0) return invalid("a sub-group has at least 1 element, not 0");
  std::vector<SubGroup> placement;
  TierDealer dealer(shares);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    std::uint64_t first = 0;
    for (const GroupRange& range : units[unit].ranges) {
      for (std::uint64_t done = 0; done < range.elements;) {
        const std::uint64_t elements = std::min(sub_group_elements, range.elements - done);
        placement.push_back({.unit = static_cast<int>(unit),
                             .group = range.group,
                             .first_element = first + done,
                             .elements = elements,
                             .tier = dealer.deal(elements)});
        done += elements;
      }
      first += range.elements;
    }
  }
  return placement;
}

Result<std::vector<SubGroup>> place_by_elements(std::span<const UnitSpec> units,
                                                std::uint64_t sub_group_elements,
                                                std::span<const TierElements> elements) {
  SLUICE_RETURN_IF_ERROR(check_units(units));
  if (sub_group_elements == 0) return invalid("a sub-group has at least 1 element, not 0");
  if (elements.size() != units.size())
    return invalid("each unit needs its tiers: " + std::to_string(units.size()) + " units, " +
                   std::to_string(elements.size()) + " answers");
  std::vector<SubGroup> placement;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const TierElements& of_unit = elements[unit];
    if (of_unit.gpu + of_unit.cpu + of_unit.nvme != units[unit].elements())
      return invalid("the tiers of unit " + units[unit].name + " do not add up to its " +
                     std::to_string(units[unit].elements()) + " elements");
    cut_unit(units[unit].ranges, sub_group_elements, of_unit,
             [&](int group, std::uint64_t first, std::uint64_t count, Tier tier) {
               placement.push_back({.unit = static_cast<int>(unit),
                                    .group = group,
                                    .first_element = first,
                                    .elements = count,
                                    .tier = tier});
             });
  }
  return placement;
}

Status check_placement(std::span<const UnitSpec> units, std::span<const SubGroup> placement) {
  SLUICE_RETURN_IF_ERROR(check_units(units));
  std::size_t next = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::uint64_t elements = units[u].elements();
    for (std::uint64_t covered = 0; covered < elements; ++next) {
      const bool follows = next < placement.size() && placement[next].unit == static_cast<int>(u) &&
                           placement[next].first_element == covered;
      if (!follows) {
        return invalid("no sub-group places unit " + units[u].name + " from element " +
                       std::to_string(covered) + " on: sub-groups cover each unit once, in order");
      }
      const SubGroup& sub_group = placement[next];
      if (sub_group.elements == 0 || sub_group.elements > elements - covered)
        return invalid(describe(units, sub_group) + ", which has " + std::to_string(elements) +
                       " elements, is empty or too long");
      if (!within_its_group(units[u], sub_group))
        return invalid(describe(units, sub_group) + " is not within parameter group " +
                       std::to_string(sub_group.group));
      covered += sub_group.elements;
    }
  }
  if (next != placement.size())
    return invalid(std::to_string(placement.size() - next) +
                   " sub-groups follow after the last unit");
  return {};
}

}  // namespace sluice::offload
