#include "engine/budget/gpu_plan.h"

#include <algorithm>

#include "aio/units.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {
namespace {

// As LibTorch places its own tensors.
constexpr std::uint64_t kPlaceAlignment = 512;
constexpr std::uint64_t kGradientAlignment = 4096;

template <typename OfUnit>
std::uint64_t sum_over_units(const ModelLayout& model, OfUnit of_unit) {
  std::uint64_t sum = 0;
  for (int unit = 0; unit < model.units(); ++unit) sum += of_unit(unit);
  return sum;
}

std::uint64_t gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options, int unit) {
  return align_up(model.layout(unit).elements * offload::element_bytes(options.type),
                  kGradientAlignment);
}

}  // namespace

// ---- parameters ------------------------------------------------------------------------------

std::uint64_t place_bytes(const ModelLayout& model, const CudaSlotOptions& options, int unit) {
  return align_up(model.layout(unit).slot_elements * offload::element_bytes(options.type),
                  kPlaceAlignment);
}

int planned_slots(const ModelLayout& model, const CudaSlotOptions& options, UnitRole of) {
  int streamed = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    if (model.kind(unit).role() == of && !options.residency.resident(unit)) ++streamed;
  return of == UnitRole::kBlock ? std::min(options.block_slots, streamed) : streamed;
}

std::uint64_t planned_slot_bytes(const ModelLayout& model, const CudaSlotOptions& options,
                                 UnitRole of) {
  std::uint64_t bytes = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    if (model.kind(unit).role() == of && !options.residency.resident(unit))
      bytes = std::max(bytes, place_bytes(model, options, unit));
  return bytes;
}

std::uint64_t planned_slot_bytes(const ModelLayout& model, const CudaSlotOptions& options) {
  std::uint64_t total = 0;
  for (const UnitRole of : kSlotRoles)
    total += planned_slot_bytes(model, options, of) *
             static_cast<std::uint64_t>(planned_slots(model, options, of));
  return total;
}

std::uint64_t planned_resident_bytes(const ModelLayout& model, const CudaSlotOptions& options) {
  return sum_over_units(model, [&](int unit) {
    return options.residency.resident(unit) ? place_bytes(model, options, unit) : 0;
  });
}

// ---- gradients -------------------------------------------------------------------------------

std::uint64_t own_accumulator_elements(const ModelLayout& model, int unit) {
  return model.lends(unit) ? model.layout(unit).slot_elements : 0;
}

std::uint64_t shared_accumulator_elements(const ModelLayout& model) {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    if (!model.lends(unit)) elements = std::max(elements, model.layout(unit).slot_elements);
  return elements;
}

std::uint64_t stage_bytes(const ModelLayout& model, const CudaSinkOptions& options) {
  std::uint64_t elements = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    if (!options.residency.has_gpu_state(unit))
      elements = std::max(elements, model.layout(unit).elements);
  return elements * offload::element_bytes(options.type);
}

std::uint64_t kept_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options,
                                  int unit) {
  return options.residency.has_gpu_state(unit) ? gradient_bytes(model, options, unit) : 0;
}

std::uint64_t kept_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options) {
  return sum_over_units(model, [&](int unit) { return kept_gradient_bytes(model, options, unit); });
}

std::uint64_t host_gradient_bytes(const ModelLayout& model, const CudaSinkOptions& options,
                                  int unit) {
  const bool all_on_gpu =
      options.residency.has_gpu_state(unit) && !options.residency.has_host_state(unit);
  return all_on_gpu ? 0 : gradient_bytes(model, options, unit);
}

std::uint64_t square_sum_bytes(const ModelLayout& model, int unit) {
  return align_up(offload::sum_node_count(0, model.layout(unit).elements) * sizeof(double),
                  kGradientAlignment);
}

std::uint64_t planned_sink_gpu_bytes(const ModelLayout& model, const CudaSinkOptions& options) {
  const std::uint64_t own =
      sum_over_units(model, [&](int unit) { return own_accumulator_elements(model, unit); });
  return (own + shared_accumulator_elements(model)) * sizeof(float) +
         kGradientStages * stage_bytes(model, options) + kept_gradient_bytes(model, options);
}

std::uint64_t planned_sink_host_bytes(const ModelLayout& model, const CudaSinkOptions& options) {
  return sum_over_units(model, [&](int unit) {
    return host_gradient_bytes(model, options, unit) + square_sum_bytes(model, unit);
  });
}

}  // namespace sluice::engine
