#include "offload/planner/placement_space.h"

#include <algorithm>
#include <cmath>

#include "aio/units.h"

namespace sluice::offload {
namespace {

// This many of `from`, chosen by `spread`.
std::vector<int> choose(const std::vector<int>& from, int count, Spread spread) {
  const auto all = static_cast<int>(from.size());
  count = std::clamp(count, 0, all);
  if (spread == Spread::kFirst) return {from.begin(), from.begin() + count};
  if (spread == Spread::kLast) return {from.end() - count, from.end()};
  std::vector<int> chosen;
  for (int i = 0; i < all; ++i)
    if ((i + 1) * count / all > i * count / all)
      chosen.push_back(from[static_cast<std::size_t>(i)]);
  return chosen;
}

std::uint64_t host_elements(const UnitPlacement& place) {
  return place.cpu_elements + place.nvme_elements;
}

}  // namespace

PlacementSpace::PlacementSpace(const PlannerInput& input) : input_(input) {
  for (int index = 0; index < units(); ++index) {
    const UnitCost& unit = input.units[static_cast<std::size_t>(index)];
    elements_ += unit.elements;
    if (has_activations(unit)) with_activations_.push_back(index);
    if (unit.unit_input_bytes > 0) with_inputs_.push_back(index);
  }
  const PlacementRules& rules = input.rules;
  if (!rules.state.empty()) {
    for (const TierElements& unit : rules.state) most_gpu_elements_ += unit.gpu;
    least_gpu_elements_ = most_gpu_elements_;
  } else {
    most_gpu_elements_ = rules.state_on_gpu ? elements_ : 0;
  }
  plan_gpu_steps();
  most_resident_ = rules.params ? 0 : std::max(units() - 2, 0);
  const auto all = static_cast<int>(with_activations_.size());
  most_kept_ = rules.recompute == Tristate::kOn ? 0 : all;
  least_kept_ = rules.recompute == Tristate::kOff ? all : 0;
}

// Inputs of units that keep more than that stay as well.
int PlacementSpace::most_offloaded(int kept) const {
  if (input_.rules.boundaries_to_cpu == Tristate::kOff) return 0;
  const int leaving = static_cast<int>(with_inputs_.size()) - kept;
  return std::max(leaving - std::max(input_.unit_input_slots, 1), 0);
}

int PlacementSpace::least_offloaded(int kept) const {
  return input_.rules.boundaries_to_cpu == Tristate::kOn ? most_offloaded(kept) : 0;
}

void PlacementSpace::plan_gpu_steps() {
  constexpr std::uint64_t kFewSteps = 64;
  const std::uint64_t granule = std::max<std::uint64_t>(input_.granule_elements, 1);
  const std::uint64_t parts = std::max<std::uint64_t>(kFewSteps / input_.units.size(), 1);
  gpu_steps_.push_back(0);
  std::uint64_t first = 0;
  for (const UnitCost& unit : input_.units) {
    for (std::uint64_t part = 1; part < parts; ++part) {
      const std::uint64_t step = first + align_down(unit.elements * part / parts, granule);
      if (step > gpu_steps_.back()) gpu_steps_.push_back(step);
    }
    first += unit.elements;
    gpu_steps_.push_back(first);
  }
}

PlacementKnobs PlacementSpace::within_bounds(PlacementKnobs knobs) const {
  knobs.gpu_elements = std::clamp(knobs.gpu_elements, least_gpu_elements_, most_gpu_elements_);
  knobs.kept = std::clamp(knobs.kept, least_kept_, most_kept_);
  knobs.offloaded =
      std::clamp(knobs.offloaded, least_offloaded(knobs.kept), most_offloaded(knobs.kept));
  knobs.resident = std::clamp(knobs.resident, 0, most_resident_);
  return knobs;
}

// Which units get state on the GPU, in order: as many as it takes, and then the others.
std::vector<std::size_t> PlacementSpace::gpu_order(const PlacementKnobs& knobs,
                                                   std::uint64_t elements) const {
  const std::size_t count = input_.units.size();
  std::vector<std::size_t> order;
  if (knobs.head_first) order.push_back(count - 1);
  order.push_back(0);
  std::uint64_t left = elements;
  for (const std::size_t end : order) left -= std::min(left, input_.units[end].elements);
  std::vector<int> blocks;
  for (int index = 1; index + 1 < units(); ++index) blocks.push_back(index);
  if (knobs.gpu_even && !blocks.empty()) {
    const std::uint64_t in_blocks =
        elements_ - input_.units.front().elements - (count > 1 ? input_.units.back().elements : 0);
    const double share = static_cast<double>(left) / static_cast<double>(in_blocks);
    const auto some = static_cast<int>(share * static_cast<double>(blocks.size()));
    for (const int index : choose(blocks, some, Spread::kEven))
      order.push_back(static_cast<std::size_t>(index));
  }
  for (std::size_t index = 0; index < count; ++index) order.push_back(index);
  return order;
}

void PlacementSpace::place_gpu_state(const PlacementKnobs& knobs,
                                     std::vector<UnitPlacement>& places) const {
  std::uint64_t left = knobs.gpu_elements;
  if (left == 0) return;
  if (!input_.rules.state.empty()) {
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i].gpu_elements = input_.rules.state[i].gpu;
    return;
  }
  for (const std::size_t index : gpu_order(knobs, left)) {
    UnitPlacement& place = places[index];
    const std::uint64_t more = std::min(left, input_.units[index].elements - place.gpu_elements);
    place.gpu_elements += more;
    left -= more;
  }
}

void PlacementSpace::place_residents(const PlacementKnobs& knobs,
                                     std::vector<UnitPlacement>& places) const {
  const bool all = input_.rules.params == Tier::kGpu;
  std::vector<int> others;
  for (int index = 0; index < units(); ++index) {
    UnitPlacement& place = places[static_cast<std::size_t>(index)];
    const bool is_end = index == 0 || index + 1 == units();
    place.resident = all || is_end || place.gpu_elements > 0;
    if (!place.resident) others.push_back(index);
  }
  for (const int index : choose(others, knobs.resident, knobs.resident_spread))
    places[static_cast<std::size_t>(index)].resident = true;
}

void PlacementSpace::place_activations(const PlacementKnobs& knobs,
                                       std::vector<UnitPlacement>& places) const {
  for (const int index : choose(with_activations_, knobs.kept, knobs.kept_spread))
    places[static_cast<std::size_t>(index)].activations = ActivationPlace::kKeep;
  int left = knobs.offloaded;
  for (const int index : with_inputs_) {
    UnitPlacement& place = places[static_cast<std::size_t>(index)];
    if (left == 0) return;
    if (place.activations == ActivationPlace::kKeep) continue;
    place.activations = ActivationPlace::kOffload;
    --left;
  }
}

// ---- the host -----------------------------------------------------------------------------------

// This many host elements on NVMe, the others in RAM.
void PlacementSpace::place_host_state(const PlacementKnobs& knobs, std::uint64_t on_nvme,
                                      std::vector<UnitPlacement>& places) const {
  const std::uint64_t granule = std::max<std::uint64_t>(input_.granule_elements, 1);
  std::uint64_t host_left = 0;
  for (std::size_t i = 0; i < places.size(); ++i)
    host_left += input_.units[i].elements - places[i].gpu_elements;
  for (std::size_t i = places.size(); i-- > 0;) {
    const std::uint64_t on_host = input_.units[i].elements - places[i].gpu_elements;
    std::uint64_t share = std::min(on_nvme, on_host);
    if (!knobs.nvme_last && host_left > on_host) {
      const double wanted = static_cast<double>(on_nvme) * static_cast<double>(on_host) /
                            static_cast<double>(host_left);
      share = std::min(share, align_up(static_cast<std::uint64_t>(std::ceil(wanted)), granule));
    }
    places[i].nvme_elements = share;
    places[i].cpu_elements = on_host - share;
    on_nvme -= share;
    host_left -= on_host;
  }
}

// As much on NVMe as RAM does not hold.
void PlacementSpace::fit_host_state(const PlacementKnobs& knobs,
                                    std::vector<UnitPlacement>& places) const {
  place_host_state(knobs, 0, places);
  const std::uint64_t all_in_ram = placed_bytes(input_, places).cpu;
  if (all_in_ram <= input_.budget.cpu) return;
  std::uint64_t on_host = 0;
  for (const UnitPlacement& place : places) on_host += host_elements(place);
  const double buffers =
      static_cast<double>(input_.step.swap_buffer_elements) * input_.bytes.nvme_state;
  const double too_many =
      (static_cast<double>(all_in_ram - input_.budget.cpu) + buffers) / input_.bytes.host_state;
  const std::uint64_t granule = std::max<std::uint64_t>(input_.granule_elements, 1);
  const std::uint64_t granules = static_cast<std::uint64_t>(too_many) / granule + 1;
  place_host_state(knobs, std::min(granules * granule, on_host), places);
}

// One more unit's parameters; a resident one's are read once less. False: there is none left.
bool PlacementSpace::spill_params(std::vector<UnitPlacement>& places) const {
  for (const bool resident : {true, false}) {
    for (std::size_t i = places.size(); i-- > 0;) {
      UnitPlacement& place = places[i];
      if (place.params_on_nvme || place.resident != resident || host_elements(place) == 0) continue;
      place.params_on_nvme = true;
      return true;
    }
  }
  return false;
}

void PlacementSpace::place_host(const PlacementKnobs& knobs,
                                std::vector<UnitPlacement>& places) const {
  const PlacementRules& rules = input_.rules;
  place_host_state(knobs, 0, places);
  if (rules.params == Tier::kNvme) {
    for (UnitPlacement& place : places)
      place.params_on_nvme = !place.resident || host_elements(place) > 0;
  }
  if (!rules.state.empty()) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      places[i].cpu_elements = rules.state[i].cpu;
      places[i].nvme_elements = rules.state[i].nvme;
    }
  } else if (rules.state_on_nvme && input_.budget.nvme > input_.fixed.nvme) {
    fit_host_state(knobs, places);
  }
  const bool may_spill = rules.params_on_nvme && rules.params.value_or(Tier::kNvme) == Tier::kNvme;
  if (!may_spill || input_.budget.nvme <= input_.fixed.nvme) return;
  while (placed_bytes(input_, places).cpu > input_.budget.cpu && spill_params(places)) {
  }
}

std::vector<UnitPlacement> PlacementSpace::places(const PlacementKnobs& asked) const {
  const PlacementKnobs knobs = within_bounds(asked);
  std::vector<UnitPlacement> places(input_.units.size());
  place_gpu_state(knobs, places);
  place_residents(knobs, places);
  place_activations(knobs, places);
  place_host(knobs, places);
  return places;
}

// With all units resident there are no slots, so that can fit where one fewer does not.
bool PlacementSpace::fill_residents(PlacementKnobs& knobs) const {
  const auto fits = [&](int resident) {
    PlacementKnobs tried = within_bounds(knobs);
    tried.resident = resident;
    std::vector<UnitPlacement> places(input_.units.size());
    place_gpu_state(tried, places);
    place_residents(tried, places);
    place_activations(tried, places);
    place_host_state(tried, 0, places);
    return placed_bytes(input_, places).gpu <= input_.budget.gpu;
  };
  knobs = within_bounds(knobs);
  knobs.resident = most_resident_;
  if (fits(most_resident_)) return true;
  int fitting = 0;
  if (!fits(fitting)) return false;
  for (int too_many = most_resident_; too_many - fitting > 1;) {
    const int middle = (fitting + too_many) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  knobs.resident = fitting;
  return true;
}

}  // namespace sluice::offload
