// A ledger with round numbers for the planner's tests: a fixed number of bytes per element,
// depending on where its state is stored; no alignment, no headers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/planner/placement.h"

namespace sluice::offload {

// Bytes per element.
struct ElementBytes {
  double gpu_state = 10;  // in addition to the parameter, whose only copy is on the GPU
  double gpu_grad = 2;    // kept until its update
  double gpu_param = 2;   // resident, in a slot, or as a gradient that is being sent
  double host_state = 10;
  double host_param = 2;
  double host_grad = 2;    // pinned, for state on cpu and nvme
  double nvme_state = 10;  // also per element of a buffer that it passes through
  double nvme_param = 2;
};

class ElementLedger final : public PlacementLedger {
 public:
  // `fixed`: bytes that do not depend on the placement.
  ElementLedger(const PlannerInput& input, const ElementBytes& each, const TierBytes& fixed)
      : units_(input.units), step_(input.step), each_(each), fixed_(fixed) {}

  TierBytes bytes(std::span<const UnitPlacement> places) const override {
    Sums sums;
    for (std::size_t i = 0; i < places.size(); ++i) add_unit(units_[i], places[i], sums);
    const ElementBytes& each = each_;
    const auto slots =
        std::min(static_cast<std::uint64_t>(std::max(step_.slots(), 1)), sums.streamed_units);
    const auto stages = static_cast<std::uint64_t>(std::max(step_.grad_stages, 1));
    const std::uint64_t cached =
        sums.largest_on_nvme *
        std::min(static_cast<std::uint64_t>(std::max(step_.param_cache_units, 1)), sums.nvme_units);
    TierBytes bytes = fixed_;
    bytes.gpu += bytes_of(sums.resident + slots * sums.largest_streamed, each.gpu_param) +
                 bytes_of(sums.gpu_state, each.gpu_state) +
                 bytes_of(sums.gpu_gradients, each.gpu_grad) +
                 bytes_of(stages * sums.largest_gradient, each.gpu_param) + sums.activations_gpu;
    bytes.cpu += bytes_of(sums.cpu_state, each.host_state) +
                 bytes_of(sums.host_params + cached, each.host_param) +
                 bytes_of(sums.host_gradients, each.host_grad) + sums.activations_cpu;
    if (sums.nvme_state > 0) bytes.cpu += bytes_of(step_.swap_buffer_elements, each.nvme_state);
    bytes.nvme += bytes_of(sums.nvme_state, each.nvme_state) +
                  bytes_of(sums.nvme_params, each.nvme_param) + sums.activations_nvme;
    return bytes;
  }

 private:
  static std::uint64_t bytes_of(std::uint64_t elements, double element_bytes) {
    return static_cast<std::uint64_t>(std::ceil(static_cast<double>(elements) * element_bytes));
  }

  // The sums of a placement, before they are converted to bytes.
  struct Sums {
    std::uint64_t resident = 0;  // in elements, like the next ones
    std::uint64_t gpu_state = 0;
    std::uint64_t cpu_state = 0;
    std::uint64_t nvme_state = 0;
    std::uint64_t gpu_gradients = 0;
    std::uint64_t host_gradients = 0;
    std::uint64_t host_params = 0;
    std::uint64_t nvme_params = 0;
    std::uint64_t largest_streamed = 0;
    std::uint64_t largest_gradient = 0;  // the largest that passes through the GPU
    std::uint64_t streamed_units = 0;
    std::uint64_t nvme_units = 0;
    std::uint64_t largest_on_nvme = 0;
    std::uint64_t activations_gpu = 0;  // in bytes, like the next ones
    std::uint64_t activations_cpu = 0;
    std::uint64_t activations_nvme = 0;
  };

  static void add_unit(const UnitCost& unit, const UnitPlacement& place, Sums& sums) {
    const std::uint64_t on_host = place.cpu_elements + place.nvme_elements;
    sums.gpu_state += place.gpu_elements;
    sums.cpu_state += place.cpu_elements;
    sums.nvme_state += place.nvme_elements;
    if (place.gpu_elements > 0)
      sums.gpu_gradients += unit.elements;
    else
      sums.largest_gradient = std::max(sums.largest_gradient, unit.elements);
    if (on_host > 0) {
      sums.host_gradients += unit.elements;
      (place.params_on_nvme ? sums.nvme_params : sums.host_params) += unit.elements;
      if (place.params_on_nvme) {
        ++sums.nvme_units;
        sums.largest_on_nvme = std::max(sums.largest_on_nvme, unit.elements);
      }
    }
    if (place.resident) {
      sums.resident += unit.elements;
    } else {
      sums.largest_streamed = std::max(sums.largest_streamed, unit.elements);
      ++sums.streamed_units;
    }
    if (place.activations == ActivationPlace::kSpill)
      sums.activations_nvme += unit.unit_input_bytes;
    else if (place.activations == ActivationPlace::kOffload)
      sums.activations_cpu += unit.unit_input_bytes;
    else
      sums.activations_gpu += unit.unit_input_bytes;
    if (place.activations == ActivationPlace::kKeep) sums.activations_gpu += unit.kept_bytes;
  }

  const std::vector<UnitCost> units_;
  const StepModelOptions step_;
  const ElementBytes each_;
  const TierBytes fixed_;
};

// Counts for the current `input`, whose units and options must not change afterwards.
inline void count_elements(PlannerInput& input, const ElementBytes& each = {},
                           const TierBytes& fixed = {}) {
  input.ledger = std::make_shared<ElementLedger>(input, each, fixed);
}

}  // namespace sluice::offload
