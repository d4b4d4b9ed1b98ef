#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/model/zeroed_ranges.h"
#include "engine/step/gradient_sink.h"
#include "offload/adamw/grad_stats.h"

namespace sluice::engine {
Result<std::unique_ptr<CpuGradientSink>> CpuGradientSink::create(const ModelLayout& model,
                                                                 aio::Executor& executor,
                                                                 const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(auto host,
                          aio::PageMemory::map(cpu_sink_gradient_bytes(model, options.type),
                                               options.huge_pages, &executor));
  const std::uint64_t accumulator_bytes = cpu_sink_accumulator_bytes(model, options.type);
  aio::PageMemory accumulators;
  if (accumulator_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(accumulators,
                            aio::PageMemory::map(accumulator_bytes, options.huge_pages, &executor));
  }
  return std::unique_ptr<CpuGradientSink>(
      new CpuGradientSink(model, executor, options, std::move(host), std::move(accumulators)));
}

CpuGradientSink::CpuGradientSink(const ModelLayout& model, aio::Executor& executor,
                                 const Options& options, aio::PageMemory host,
                                 aio::PageMemory accumulators)
    : executor_(executor),
      options_(options),
      host_(std::move(host)),
      accumulators_(std::move(accumulators)),
      units_(static_cast<std::size_t>(model.units())) {
  std::uint64_t offset_bytes = 0;
  std::byte* own = accumulators_.data() + cpu_sink_shared_bytes(model, options.type);
  for (int index = 0; index < model.units(); ++index) {
    const UnitLayout& layout = model.layout(index);
    Unit& unit = at(index);
    unit.elements = layout.elements;
    unit.zeroed = zeroed_ranges(layout);
    unit.offset_bytes = offset_bytes;
    offset_bytes +=
        align_up(layout.elements * offload::element_bytes(options.type), kCpuSinkAlignment);
    unit.lends = model.lends(index);
    std::byte* buffer = unit.lends ? own : accumulators_.data();
    own += cpu_sink_own_bytes(model, options.type, index);
    if (options.type == offload::GradType::kFp32) buffer = host_.data() + unit.offset_bytes;
    unit.first = reinterpret_cast<float*>(buffer);
    unit.accumulators = UnitViews(
        layout,
        at::from_blob(buffer, {static_cast<std::int64_t>(layout.slot_elements)}, at::kFloat));
    unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
  }
}

const UnitViews& CpuGradientSink::open(int index) {
  Unit& unit = at(index);
  if (!unit.is_open) {
    for (const Unit& other : units_)
      SLUICE_CHECK(unit.lends || other.lends || !other.is_open,
                   "one unit at a time accumulates, but for those that lend");
    // The first gradient of a step: what was summed before is from the previous step.
    if (unit.finished)
      for (Unit& each : units_) each.finished = false;
    for (const offload::ElementRange& range : unit.zeroed)
      std::memset(unit.first + range.first, 0, range.elements * sizeof(float));
    unit.is_open = true;
  }
  return unit.accumulators;
}

Status CpuGradientSink::finish(int index) {
  Unit& unit = at(index);
  SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
  unit.is_open = false;
  unit.finished = true;
  unit.sum->reset(0);
  if (unit.elements == 0) return {};
  std::byte* const out = host_.data() + unit.offset_bytes;
  const bool cast = options_.type != offload::GradType::kFp32;
  offload::cast_and_sum(executor_, options_.isa,
                        {.grad = unit.first,
                         .to = options_.type,
                         .out = cast ? reinterpret_cast<std::uint16_t*>(out) : nullptr,
                         .elements = unit.elements},
                        *unit.sum);
  return {};
}

Result<GradientTotals> CpuGradientSink::totals() {
  GradientTotals totals;
  for (int index = 0; index < static_cast<int>(units_.size()); ++index) {
    const Unit& unit = at(index);
    SLUICE_CHECK(unit.finished, "totals() of a step whose gradients are complete");
    if (unit.elements == 0) continue;
    totals.square_sum += unit.sum->total();
    if (unit.sum->finite()) continue;
    totals.finite = false;
    totals.first_not_finite = index;  // backward runs from the last to the first
  }
  return totals;
}

const void* CpuGradientSink::host_gradient(int unit) const {
  return host_.data() + units_[static_cast<std::size_t>(unit)].offset_bytes;
}

}  // namespace sluice::engine
