#include "offload/planner/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "aio/check.h"

namespace sluice::offload {
namespace {

std::uint64_t bytes_of(std::uint64_t elements, double element_bytes) {
  return static_cast<std::uint64_t>(std::ceil(static_cast<double>(elements) * element_bytes));
}

std::uint64_t slot_elements(const UnitCost& unit) {
  return std::max(unit.elements, unit.slot_elements);
}

std::uint64_t more_than(std::uint64_t bytes, std::uint64_t budget) {
  return bytes > budget ? bytes - budget : 0;
}

// What a placement amounts to, before it is converted to bytes.
struct Sums {
  std::uint64_t resident = 0;  // elements, like the next
  std::uint64_t gpu_state = 0;
  std::uint64_t cpu_state = 0;
  std::uint64_t nvme_state = 0;
  std::uint64_t gpu_gradients = 0;
  std::uint64_t host_gradients = 0;
  std::uint64_t host_params = 0;
  std::uint64_t nvme_params = 0;
  std::uint64_t largest_streamed = 0;
  std::uint64_t largest_gradient = 0;  // that passes through the GPU
  std::uint64_t streamed_units = 0;
  std::vector<std::uint64_t> on_nvme;  // elements of each unit whose parameters are there
  std::uint64_t activations_gpu = 0;   // bytes, like the next
  std::uint64_t activations_cpu = 0;
};

void add_unit(const UnitCost& unit, const UnitPlacement& place, Sums& sums) {
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
    if (place.params_on_nvme) sums.on_nvme.push_back(unit.elements);
  }
  if (place.resident) {
    sums.resident += slot_elements(unit);
  } else {
    sums.largest_streamed = std::max(sums.largest_streamed, slot_elements(unit));
    ++sums.streamed_units;
  }
  if (place.activations == ActivationPlace::kOffload)
    sums.activations_cpu += unit.unit_input_bytes;
  else
    sums.activations_gpu += unit.unit_input_bytes;
  if (place.activations == ActivationPlace::kKeep) sums.activations_gpu += unit.kept_bytes;
}

// Of buffers for units whose parameters are on NVMe: `units` of each size class (ParamLayout).
std::uint64_t cached_elements(std::vector<std::uint64_t> sizes, std::uint64_t units) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  std::uint64_t elements = 0;
  std::uint64_t buffer = 0;  // of the class
  std::uint64_t buffers = 0;
  for (const std::uint64_t size : sizes) {
    if (size < buffer / 4 * 3 || buffer == 0) {
      buffer = size;
      buffers = 0;
    }
    if (buffers++ < units) elements += buffer;
  }
  return elements;
}

}  // namespace

TierBytes TierBytes::beyond(const TierBytes& budget) const {
  return {.gpu = more_than(gpu, budget.gpu),
          .cpu = more_than(cpu, budget.cpu),
          .nvme = more_than(nvme, budget.nvme)};
}

TierBytes placed_bytes(const PlannerInput& input, const std::vector<UnitPlacement>& places) {
  SLUICE_CHECK(places.size() == input.units.size(), "each unit has its place");
  Sums sums;
  for (std::size_t i = 0; i < places.size(); ++i) add_unit(input.units[i], places[i], sums);
  const ElementBytes& each = input.bytes;
  const auto slots =
      std::min(static_cast<std::uint64_t>(std::max(input.step.slots(), 1)), sums.streamed_units);
  const auto stages = static_cast<std::uint64_t>(std::max(input.step.grad_stages, 1));
  const std::uint64_t cached = cached_elements(
      sums.on_nvme, static_cast<std::uint64_t>(std::max(input.step.param_cache_units, 1)));
  TierBytes bytes = input.fixed;
  bytes.gpu += bytes_of(sums.resident + slots * sums.largest_streamed, each.gpu_param) +
               bytes_of(sums.gpu_state, each.gpu_state) +
               bytes_of(sums.gpu_gradients, each.gpu_grad) +
               bytes_of(stages * sums.largest_gradient, each.gpu_param) + sums.activations_gpu;
  bytes.cpu += bytes_of(sums.cpu_state, each.host_state) +
               bytes_of(sums.host_params + cached, each.host_param) +
               bytes_of(sums.host_gradients, each.host_grad) + sums.activations_cpu;
  if (sums.nvme_state > 0) bytes.cpu += bytes_of(input.step.swap_buffer_elements, each.nvme_state);
  bytes.nvme +=
      bytes_of(sums.nvme_state, each.nvme_state) + bytes_of(sums.nvme_params, each.nvme_param);
  return bytes;
}

}  // namespace sluice::offload
