#include "engine/budget/cpu_sink_plan.h"

#include <algorithm>

#include "aio/units.h"
#include "engine/budget/gpu_plan.h"

namespace sluice::engine {

using offload::GradType;
using offload::HeldSums;
using offload::RankPart;

std::uint64_t cpu_sink_gradient_bytes(const ModelLayout& model, GradType type,
                                      const RankPart& ranks) {
  std::uint64_t total = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    total += align_up(offload::shard_of(model.layout(unit).elements, ranks).elements *
                          offload::element_bytes(type),
                      kCpuSinkAlignment);
  return total;
}

int cpu_sink_accumulators(GradType type, const HeldSums& sums, const RankPart& ranks) {
  return sums.levels - (type == GradType::kFp32 && ranks.world == 1 ? 1 : 0);
}

std::uint64_t cpu_sink_sum_bytes(const UnitLayout& unit, const RankPart& ranks) {
  const std::uint64_t elements =
      std::max(unit.slot_elements, offload::gathered_elements(unit.elements, ranks.world));
  return align_up(elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_shared_bytes(const ModelLayout& model, const RankPart& ranks) {
  std::uint64_t most = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    most = std::max(most, cpu_sink_sum_bytes(model.layout(unit), ranks));
  return most;
}

std::uint64_t cpu_sink_unit_sum_bytes(const ModelLayout& model, GradType type, const HeldSums& sums,
                                      const RankPart& ranks) {
  std::uint64_t one = cpu_sink_shared_bytes(model, ranks);
  if (sums.kept > 0) {
    one = 0;
    for (int unit = 0; unit < model.units(); ++unit)
      one += cpu_sink_sum_bytes(model.layout(unit), ranks);
  }
  return static_cast<std::uint64_t>(cpu_sink_accumulators(type, sums, ranks)) * one;
}

std::uint64_t cpu_sink_borrowed_bytes(const ModelLayout& model, int unit) {
  return align_up(model.borrowed_sums(unit).slot_elements * sizeof(float), kCpuSinkAlignment);
}

std::uint64_t cpu_sink_accumulator_bytes(const ModelLayout& model, GradType type,
                                         const HeldSums& sums, const RankPart& ranks) {
  std::uint64_t borrowed = 0;
  for (int unit = 0; unit < model.units(); ++unit) borrowed += cpu_sink_borrowed_bytes(model, unit);
  return cpu_sink_unit_sum_bytes(model, type, sums, ranks) +
         static_cast<std::uint64_t>(sums.levels) * borrowed;
}

std::uint64_t cpu_sink_exchange_bytes(const ModelLayout& model, const HeldSums& sums,
                                      const RankPart& ranks) {
  if (ranks.world == 1) return 0;
  std::uint64_t most = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    most = std::max(most, model.layout(unit).elements);
  const std::uint64_t piece = offload::shard_piece_elements(most, ranks.world);
  return offload::SumOrder::exchange_bytes(sums, ranks, piece) + piece * sizeof(float);
}

std::uint64_t planned_cpu_sink_bytes(const ModelLayout& model, GradType type, const HeldSums& sums,
                                     const RankPart& ranks) {
  return cpu_sink_gradient_bytes(model, type, ranks) +
         cpu_sink_accumulator_bytes(model, type, sums, ranks) +
         cpu_sink_exchange_bytes(model, sums, ranks);
}

std::uint64_t cpu_sink_cast_bytes(const ModelLayout& model, GradType type) {
  if (type == GradType::kFp32) return 0;
  std::uint64_t most = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    most = std::max(most, model.layout(unit).elements);
  return align_up(most * offload::element_bytes(type), kCpuSinkAlignment);
}

std::uint64_t planned_cpu_sink_bytes_with_nvme(const ModelLayout& model, GradType type,
                                               const HeldSums& sums) {
  std::uint64_t borrowed = 0;
  for (int unit = 0; unit < model.units(); ++unit) borrowed += cpu_sink_borrowed_bytes(model, unit);
  return cpu_sink_cast_bytes(model, type) + static_cast<std::uint64_t>(sums.levels) * borrowed;
}

}  // namespace sluice::engine
