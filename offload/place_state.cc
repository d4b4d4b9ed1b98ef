#include "offload/place_state.h"

#include <algorithm>
#include <array>
#include <string>

namespace sluice::offload {
namespace {

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

struct Share {
  Tier tier;
  std::uint64_t left;
};

void place_unit(const UnitSpec& unit, const UnitPlace& place, std::uint64_t most, int index,
                std::vector<SubGroup>& placement) {
  std::array<Share, 3> shares = {{{Tier::kGpu, place.gpu_elements},
                                  {Tier::kCpu, place.cpu_elements},
                                  {Tier::kNvme, place.nvme_elements}}};
  std::uint64_t first = 0;
  for (const GroupRange& range : unit.ranges) {
    for (std::uint64_t left = range.elements; left > 0;) {
      Share& share =
          *std::find_if(shares.begin(), shares.end(), [](const Share& it) { return it.left > 0; });
      const std::uint64_t elements = std::min({left, most, share.left});
      placement.push_back({.unit = index,
                           .group = range.group,
                           .first_element = first,
                           .elements = elements,
                           .tier = share.tier});
      first += elements;
      left -= elements;
      share.left -= elements;
    }
  }
}

}  // namespace

Result<std::vector<SubGroup>> place_by_plan(std::span<const UnitSpec> units,
                                            std::uint64_t sub_group_elements,
                                            std::span<const UnitPlace> places) {
  if (sub_group_elements == 0) return invalid("a sub-group has elements");
  if (units.size() != places.size()) {
    return invalid("the plan has " + std::to_string(places.size()) + " units, the model " +
                   std::to_string(units.size()));
  }
  std::vector<SubGroup> placement;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitPlace& place = places[i];
    const std::uint64_t planned = place.gpu_elements + place.cpu_elements + place.nvme_elements;
    if (planned != units[i].elements()) {
      return invalid("the plan has " + std::to_string(planned) + " elements in unit " +
                     units[i].name + ", the model " + std::to_string(units[i].elements()));
    }
    place_unit(units[i], place, sub_group_elements, static_cast<int>(i), placement);
  }
  SLUICE_RETURN_IF_ERROR(check_placement(units, placement));
  return placement;
}

}  // namespace sluice::offload
