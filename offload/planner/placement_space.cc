#include "offload/planner/placement_space.h"

#include <algorithm>
#include <cmath>

#include "aio/units.h"

namespace sluice::offload {
namespace {

// Chooses `count` of `from` according to `spread`.
std::vector<int> choose(const std::vector<int>& from, int count, Spread spread) {
  const auto all = static_cast<int>(from.size());
  count = std::clamp(count, 0, all);
  if (spread == Spread::kFirst) return {from.begin(), from.begin() + count};
  if (spread == Spread::kLast) return {from.end() - count, from.end()};
  std::vector<int> chosen;
  for (int i = 0; i < all; ++i)
    if (is_chosen_evenly(i, count, all)) chosen.push_back(from[static_cast<std::size_t>(i)]);
  return chosen;
}

// Whether the host has parameters of the unit: parameters that it updates, or a copy of frozen ones
// that are not on the GPU.
bool has_host_params(const UnitCost& unit, const UnitPlacement& place) {
  return unit.is_frozen() ? !place.resident : place.cpu_elements + place.nvme_elements > 0;
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
    for (const TierElements& unit : rules.state) max_gpu_elements_ += unit.gpu;
    min_gpu_elements_ = max_gpu_elements_;
  } else {
    max_gpu_elements_ = rules.state_on_gpu ? elements_ : 0;
  }
  plan_gpu_steps();
  const bool has_gpu = rules.state_on_gpu || !input.units.front().is_frozen();
  const bool may_choose = !rules.params && has_gpu && rules.resident == Tristate::kAuto;
  max_resident_ = may_choose ? std::max(units() - 2, 0) : 0;
  const auto all = static_cast<int>(with_activations_.size());
  max_kept_ = rules.recompute == Tristate::kOn ? 0 : all;
  min_kept_ = rules.recompute == Tristate::kOff ? all : 0;
}

// The inputs in the ring stay on the GPU, and so do those of units that keep all activations.
int PlacementSpace::max_offloaded(int kept) const {
  if (input_.rules.unit_inputs_to_cpu == Tristate::kOff) return 0;
  const int leaving = static_cast<int>(with_inputs_.size()) - kept;
  return std::max(leaving - std::max(input_.unit_input_slots, 1), 0);
}

int PlacementSpace::min_offloaded(int kept) const {
  const PlacementRules& rules = input_.rules;
  const bool all =
      rules.unit_inputs_to_cpu == Tristate::kOn || rules.unit_inputs_to_nvme == Tristate::kOn;
  return all ? max_offloaded(kept) : 0;
}

int PlacementSpace::max_spilled(int offloaded) const {
  if (input_.rules.unit_inputs_to_nvme == Tristate::kOff || input_.budget.nvme == 0) return 0;
  if (input_.rules.state_on_gpu) return offloaded;
  return std::max(static_cast<int>(with_inputs_.size()) - 1, 0);
}

int PlacementSpace::min_spilled(int offloaded) const {
  return input_.rules.unit_inputs_to_nvme == Tristate::kOn ? max_spilled(offloaded) : 0;
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
    if (first > gpu_steps_.back()) gpu_steps_.push_back(first);
  }
}

PlacementKnobs PlacementSpace::within_bounds(PlacementKnobs knobs) const {
  knobs.gpu_elements = std::clamp(knobs.gpu_elements, min_gpu_elements_, max_gpu_elements_);
  knobs.kept = std::clamp(knobs.kept, min_kept_, max_kept_);
  knobs.offloaded =
      std::clamp(knobs.offloaded, min_offloaded(knobs.kept), max_offloaded(knobs.kept));
  knobs.spilled =
      std::clamp(knobs.spilled, min_spilled(knobs.offloaded), max_spilled(knobs.offloaded));
  knobs.resident = std::clamp(knobs.resident, 0, max_resident_);
  return knobs;
}

// The order in which units get state on the GPU: first those needed for `elements`, then the
// others.
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
    const double share =
        in_blocks > 0 ? static_cast<double>(left) / static_cast<double>(in_blocks) : 0;
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
  if (input_.rules.resident != Tristate::kAuto) {
    for (UnitPlacement& place : places) place.resident = input_.rules.resident == Tristate::kOn;
    return;
  }
  const bool all = input_.rules.params == Tier::kGpu;
  std::vector<int> others;
  for (int index = 0; index < units(); ++index) {
    UnitPlacement& place = places[static_cast<std::size_t>(index)];
    const bool is_end = index == 0 || index + 1 == units();
    const bool frozen = input_.units[static_cast<std::size_t>(index)].is_frozen();
    place.resident = all || is_end || (place.gpu_elements > 0 && !frozen);
    // Without a GPU, the host's copy is the only one.
    if (frozen && !input_.rules.state_on_gpu) place.resident = false;
    if (!place.resident) others.push_back(index);
  }
  for (const int index : choose(others, knobs.resident, knobs.resident_spread))
    places[static_cast<std::size_t>(index)].resident = true;
}

void PlacementSpace::place_activations(const PlacementKnobs& knobs,
                                       std::vector<UnitPlacement>& places) const {
  for (const int index : choose(with_activations_, knobs.kept, knobs.kept_spread))
    places[static_cast<std::size_t>(index)].activations = ActivationPlace::kKeep;
  std::vector<int> leaving;
  const int most = input_.rules.state_on_gpu ? knobs.offloaded : max_spilled(0);
  for (const int index : with_inputs_) {
    UnitPlacement& place = places[static_cast<std::size_t>(index)];
    if (static_cast<int>(leaving.size()) == most) break;
    if (place.activations == ActivationPlace::kKeep) continue;
    if (input_.rules.state_on_gpu) place.activations = ActivationPlace::kOffload;
    leaving.push_back(index);
  }
  for (const int index : choose(leaving, knobs.spilled, Spread::kEven))
    places[static_cast<std::size_t>(index)].activations = ActivationPlace::kSpill;
}

// ---- the host -----------------------------------------------------------------------------------

// Puts this many host elements on NVMe and the others in RAM.
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

std::uint64_t PlacementSpace::beyond_ram(std::span<const UnitPlacement> places) const {
  const std::uint64_t bytes = input_.ledger->bytes(places).cpu;
  return bytes - std::min(bytes, input_.budget.cpu);
}

// Puts as much on NVMe as RAM does not hold. Once the buffers for NVMe exist, bytes are nearly
// linear in the number of granules on NVMe. Guesses along that line approach the limit from below,
// and the final value was tested.
void PlacementSpace::fit_host_state(const PlacementKnobs& knobs,
                                    std::vector<UnitPlacement>& places) const {
  const std::uint64_t granule = std::max<std::uint64_t>(input_.granule_elements, 1);
  std::uint64_t on_host = 0;
  for (std::size_t i = 0; i < places.size(); ++i)
    on_host += input_.units[i].elements - places[i].gpu_elements;
  const std::uint64_t all = (on_host + granule - 1) / granule;
  const auto beyond = [&](std::uint64_t granules) {
    place_host_state(knobs, std::min(granules * granule, on_host), places);
    return beyond_ram(places);
  };
  if (beyond(0) == 0 || on_host == 0) return;
  const std::uint64_t with_one = beyond(1);
  if (with_one == 0 || all == 1) return;
  if (beyond(all) > 0) return;
  const std::uint64_t with_all = input_.ledger->bytes(places).cpu;
  const double granule_bytes =
      static_cast<double>(with_one + input_.budget.cpu - std::min(with_all, input_.budget.cpu)) /
      static_cast<double>(all - 1);
  std::uint64_t too_few = 1;
  std::uint64_t missing = with_one;
  constexpr int kGuesses = 6;
  for (int guess = 0; guess < kGuesses; ++guess) {
    const double more = std::ceil(static_cast<double>(missing) / std::max(granule_bytes, 1.0));
    const std::uint64_t tried =
        std::min(too_few + std::max<std::uint64_t>(static_cast<std::uint64_t>(more), 1), all);
    missing = beyond(tried);
    if (missing == 0) return;
    too_few = tried;
  }
  for (std::uint64_t enough = all; enough - too_few > 0;) {
    const std::uint64_t middle = too_few + (enough - too_few) / 2;
    if (beyond(middle) == 0)
      enough = middle;
    else
      too_few = middle + 1;
  }
  place_host_state(knobs, std::min(too_few * granule, on_host), places);
}

// The order in which units' parameters leave RAM: a resident unit's are read one time less.
std::vector<std::size_t> PlacementSpace::spill_order(std::span<const UnitPlacement> places) const {
  std::vector<std::size_t> order;
  for (const bool resident : {true, false}) {
    for (std::size_t i = places.size(); i-- > 0;) {
      const UnitPlacement& place = places[i];
      const bool is_there = !place.params_on_nvme && has_host_params(input_.units[i], place);
      if (is_there && place.resident == resident && !input_.units[i].params_stay_in_ram)
        order.push_back(i);
    }
  }
  return order;
}

// Moves as many parameters to NVMe as RAM does not hold, or all.
void PlacementSpace::spill_params(std::vector<UnitPlacement>& places) const {
  if (beyond_ram(places) == 0) return;
  const std::vector<std::size_t> order = spill_order(places);
  const auto fits = [&](std::size_t spilled) {
    for (std::size_t i = 0; i < order.size(); ++i) places[order[i]].params_on_nvme = i < spilled;
    return beyond_ram(places) == 0;
  };
  if (order.empty() || !fits(order.size())) return;
  std::size_t too_few = 0;
  std::size_t enough = order.size();
  while (enough - too_few > 1) {
    const std::size_t middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  fits(enough);
}

void PlacementSpace::place_host(const PlacementKnobs& knobs,
                                std::vector<UnitPlacement>& places) const {
  const PlacementRules& rules = input_.rules;
  place_host_state(knobs, 0, places);
  if (rules.params == Tier::kNvme) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      places[i].params_on_nvme =
          !input_.units[i].params_stay_in_ram && has_host_params(input_.units[i], places[i]);
    }
  }
  const bool may_spill = rules.params_on_nvme && input_.budget.nvme > 0 &&
                         rules.params.value_or(Tier::kNvme) == Tier::kNvme;
  const bool params_first = input_.units.front().is_frozen() && rules.state.empty();
  if (may_spill && params_first) spill_params(places);
  if (!rules.state.empty()) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      places[i].cpu_elements = rules.state[i].cpu;
      places[i].nvme_elements = rules.state[i].nvme;
    }
  } else if (rules.state_on_nvme && input_.budget.nvme > 0) {
    fit_host_state(knobs, places);
  }
  if (may_spill && !params_first) spill_params(places);
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

// With all units resident there are no slots, so all can fit where one fewer does not.
bool PlacementSpace::fill_residents(PlacementKnobs& knobs) const {
  const auto fits = [&](int resident) {
    PlacementKnobs tried = within_bounds(knobs);
    tried.resident = resident;
    std::vector<UnitPlacement> places(input_.units.size());
    place_gpu_state(tried, places);
    place_residents(tried, places);
    place_activations(tried, places);
    place_host_state(tried, 0, places);
    return input_.ledger->bytes(places).gpu <= input_.budget.gpu;
  };
  knobs = within_bounds(knobs);
  knobs.resident = max_resident_;
  if (fits(max_resident_)) return true;
  int fitting = 0;
  if (!fits(fitting)) return false;
  for (int too_many = max_resident_; too_many - fitting > 1;) {
    const int middle = (fitting + too_many) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  knobs.resident = fitting;
  return true;
}

}  // namespace sluice::offload
