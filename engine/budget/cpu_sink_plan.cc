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

std::uint64_t cpu_sink_shared_bytes(const ModelLayout& model, offload::GradType type) {
  if (type == offload::GradType::kFp32) return 0;
  return align_up(shared_accumulator_elements(model) * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_own_bytes(const ModelLayout& model, offload::GradType type, int unit) {
  if (type == offload::GradType::kFp32) return 0;
  return align_up(own_accumulator_elements(model, unit) * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, offload::GradType type) {
  std::uint64_t total = cpu_sink_shared_bytes(model, type);
  for (int unit = 0; unit < model.units(); ++unit) total += cpu_sink_own_bytes(model, type, unit);
  return total;
}

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, offload::GradType type) {
  return cpu_sink_gradient_bytes(model, type) + cpu_sink_accumulator_bytes(model, type);
}

}  // namespace sluice::engine
