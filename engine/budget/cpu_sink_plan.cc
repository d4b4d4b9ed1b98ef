#include "engine/budget/cpu_sink_plan.h"

#include "aio/units.h"
#include "engine/budget/gpu_plan.h"

namespace sluice::engine {

std::uint64_t cpu_sink_gradient_bytes(const ModelLayout& model, offload::GradType type) {
  std::uint64_t total = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    total +=
        align_up(model.layout(unit).elements * offload::element_bytes(type), kCpuSinkAlignment);
  return total;
}

std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit) {
  return align_up(unit.slot_elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, offload::GradType type,
                                      bool keeps_sums) {
  if (type == offload::GradType::kFp32) return 0;
  if (!keeps_sums)
    return align_up(shared_accumulator_elements(model) * sizeof(float), kCpuSinkAlignment);
  std::uint64_t total = 0;
  for (int unit = 0; unit < model.units(); ++unit) total += cpu_sink_sum_bytes(model.layout(unit));
  return total;
}

std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit) {
  return align_up(model.borrowed_sums(unit).slot_elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type,
                                         bool keeps_sums) {
  std::uint64_t total = cpu_sink_unit_sum_bytes(model, type, keeps_sums);
  for (int unit = 0; unit < model.units(); ++unit) total += cpu_sink_borrowed_bytes(model, unit);
  return total;
}

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type,
                                     bool keeps_sums) {
  return cpu_sink_gradient_bytes(model, type) + cpu_sink_accumulator_bytes(model, type, keeps_sums);
}

}  // namespace sluice::engine
