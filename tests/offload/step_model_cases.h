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

}  // namespace sluice::offload
