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

int cpu_sink_accumulators(offload::GradType type, const offload::HeldSums& sums) {
  return sums.levels - (type == offload::GradType::kFp32 ? 1 : 0);
}

std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit) {
  return align_up(unit.slot_elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, offload::GradType type,
                                      const offload::HeldSums& sums) {
  std::uint64_t one =
      align_up(shared_accumulator_elements(model) * sizeof(float), kCpuSinkAlignment);
  if (sums.kept > 0) {
    one = 0;
    for (int unit = 0; unit < model.units(); ++unit) one += cpu_sink_sum_bytes(model.layout(unit));
  }
  return static_cast<std::uint64_t>(cpu_sink_accumulators(type, sums)) * one;
}

std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit) {
  return align_up(model.borrowed_sums(unit).slot_elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type,
                                         const offload::HeldSums& sums) {
  std::uint64_t borrowed = 0;
  for (int unit = 0; unit < model.units(); ++unit) borrowed += cpu_sink_borrowed_bytes(model, unit);
  return cpu_sink_unit_sum_bytes(model, type, sums) +
         static_cast<std::uint64_t>(sums.levels) * borrowed;
}

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type,
                                     const offload::HeldSums& sums) {
  return cpu_sink_gradient_bytes(model, type) + cpu_sink_accumulator_bytes(model, type, sums);
}

}  // namespace sluice::engine
