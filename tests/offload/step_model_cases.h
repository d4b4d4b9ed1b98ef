// Small models with round numbers, for the planner's tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "offload/planner/placement.h"
#include "offload/planner/step_model.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

// Fast enough to be invisible in a step of seconds.
inline constexpr double kAtOnce = 1e15;

inline DuplexRates duplex(double each_way) { return {each_way, each_way, each_way, each_way}; }

inline MachineSpeeds instant_machine() {
  return {.bus = duplex(kAtOnce),
          .drives = duplex(kAtOnce),
          .cpu_adamw_elements_per_s = kAtOnce,
          .gpu_adamw_elements_per_s = kAtOnce};
}

inline UnitPlacement on_gpu(const UnitCost& unit) {
  return {.gpu_elements = unit.elements, .resident = true};
}
inline UnitPlacement on_cpu(const UnitCost& unit, bool resident) {
  return {.cpu_elements = unit.elements, .resident = resident};
}
inline UnitPlacement on_nvme(const UnitCost& unit, bool resident) {
  return {.nvme_elements = unit.elements, .resident = resident};
}

// In the form of PlacementRules::state.
inline std::vector<TierElements> all_state_on(Tier tier, const std::vector<UnitCost>& units) {
  std::vector<TierElements> state(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    TierElements& it = state[i];
    (tier == Tier::kGpu ? it.gpu : tier == Tier::kCpu ? it.cpu : it.nvme) = units[i].elements;
  }
  return state;
}

// Embedding, blocks, head, with comparable weight on every resource.
struct RandomModel {
  std::vector<UnitCost> units;
  MachineSpeeds speeds;
};
inline RandomModel random_model(std::mt19937_64& random, int blocks, bool sharing) {
  const auto number = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  RandomModel model;
  const auto block_elements = static_cast<std::uint64_t>(number(200'000, 2'000'000));
  const double forward_s = number(0.5, 5);
  for (int i = 0; i < blocks + 2; ++i) {
    UnitCost unit{.name = "u" + std::to_string(i)};
    const bool is_end = i == 0 || i == blocks + 1;
    if (is_end) {
      unit.elements = static_cast<std::uint64_t>(number(10'000, 3'000'000));
      unit.forward_s = number(0, 1) * forward_s;
      unit.backward_s = 2 * unit.forward_s;
      if (i > 0) unit.lenders = {0};  // tied weights
    } else {
      unit.elements = block_elements;
      unit.forward_s = forward_s;
      unit.recompute_s = 0.8 * forward_s;
      unit.backward_s = 2 * forward_s;
      unit.unit_input_bytes = block_elements;
      unit.kept_bytes = 6 * block_elements;
    }
    model.units.push_back(unit);
  }
  const auto rates = [&](double each_way) {
    const double both = sharing ? number(0.5, 1) : 1;
    return DuplexRates{each_way, each_way * number(0.8, 1.2), each_way * 0.8 * both,
                       each_way * 0.8 * both};
  };
  const auto elements = static_cast<double>(block_elements);
  model.speeds = {.bus = rates(2 * elements / forward_s * number(0.5, 4)),
                  .drives = rates(10 * elements / forward_s * number(0.02, 1)),
                  .cpu_adamw_elements_per_s = elements / forward_s * number(0.3, 3),
                  .gpu_adamw_elements_per_s = elements / forward_s * number(10, 50)};
  if (!sharing) {
    for (DuplexRates* const it : {&model.speeds.bus, &model.speeds.drives}) {
      it->in_both_bytes_per_s = it->in_bytes_per_s;
      it->out_both_bytes_per_s = it->out_bytes_per_s;
    }
  } else {
    model.speeds.host_copy_bytes_per_s = model.speeds.cpu_adamw_elements_per_s * number(20, 60);
  }
  return model;
}

inline constexpr double kClose = 1e-9;

// Embedding, one block, head: 10, 20 and 10 elements.
inline std::vector<UnitCost> three_units() {
  return {{.name = "embedding", .elements = 10, .forward_s = 1, .backward_s = 2},
          {.name = "h0",
           .elements = 20,
           .forward_s = 3,
           .recompute_s = 2,
           .backward_s = 6,
           .kept_bytes = 1000},
          {.name = "head", .elements = 10, .forward_s = 1, .backward_s = 2, .lenders = {0}}};
}

// 2 seconds for the 8-bit part of the embedding, and 1 for the block's.
inline std::vector<UnitCost> packed_units() {
  std::vector<UnitCost> units = three_units();
  units[0].frozen_elements = 10;
  units[0].unpack_s = 2;
  units[1].frozen_elements = 20;
  units[1].unpack_s = 1;
  units[2].frozen_elements = 10;
  return units;
}

// Two blocks that recompute nothing.
inline std::vector<UnitCost> four_units() {
  const UnitCost block{.name = "h0", .elements = 20, .forward_s = 3, .backward_s = 6};
  std::vector<UnitCost> units = {three_units()[0], block, block, three_units()[2]};
  units[2].name = "h1";
  return units;
}

template <typename Place>
std::vector<UnitPlacement> each(const std::vector<UnitCost>& units, const Place& place) {
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : units) places.push_back(place(unit));
  return places;
}

inline std::vector<UnitPlacement> all_resident_on_cpu(const std::vector<UnitCost>& units) {
  return each(units, [](const UnitCost& unit) { return on_cpu(unit, true); });
}

}  // namespace sluice::offload
