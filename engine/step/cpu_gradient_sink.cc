#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/model/zeroed_ranges.h"
#include "engine/step/gradient_sink.h"
#include "offload/adamw/grad_stats.h"

namespace sluice::engine {
namespace {

UnitViews views_at(const UnitLayout& layout, std::byte* memory) {
  if (layout.parameters.empty()) return {};
  return {layout,
          at::from_blob(memory, {static_cast<std::int64_t>(layout.slot_elements)}, at::kFloat)};
}

}  // namespace

Result<std::unique_ptr<CpuGradientSink>> CpuGradientSink::create(const ModelLayout& model,
                                                                 aio::Executor& executor,
                                                                 const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(auto host,
                          aio::PageMemory::map(cpu_sink_gradient_bytes(model, options.type),
                                               options.huge_pages, &executor));
  const std::uint64_t accumulator_bytes =
      cpu_sink_accumulator_bytes(model, options.type, options.keeps_sums);
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
  std::byte* borrowed =
      accumulators_.data() + cpu_sink_unit_sum_bytes(model, options.type, options.keeps_sums);
  std::uint64_t sum_offset_bytes = 0;  // of the unit's accumulators, where each has its own
  std::vector<UnitViews> own(units_.size()), sums(units_.size());
  for (int index = 0; index < model.units(); ++index) {
    const UnitLayout& layout = model.layout(index);
    Unit& unit = at(index);
    unit.elements = layout.elements;
    unit.zeroed = zeroed_ranges(layout);
    unit.offset_bytes = offset_bytes;
    offset_bytes +=
        align_up(layout.elements * offload::element_bytes(options.type), kCpuSinkAlignment);
    std::byte* const buffer = options.type == offload::GradType::kFp32
                                  ? host_.data() + unit.offset_bytes
                                  : accumulators_.data() + sum_offset_bytes;
    if (options.keeps_sums) sum_offset_bytes += cpu_sink_sum_bytes(layout);
    unit.first = reinterpret_cast<float*>(buffer);
    const auto i = static_cast<std::size_t>(index);
    own[i] = views_at(layout, buffer);
    const UnitLayout& of_borrowed = model.borrowed_sums(index);
    sums[i] = views_at(of_borrowed, borrowed);
    unit.borrowed_sums = {reinterpret_cast<float*>(borrowed), of_borrowed.slot_elements};
    borrowed += cpu_sink_borrowed_bytes(model, index);
    unit.gradients = gradient_views(model, index, own[i], sums[i]);
    unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
    for (const int lender : model.lenders(index)) {
      at(lender).borrowed_by.add(model, lender, own[static_cast<std::size_t>(lender)], index,
                                 sums[i]);
    }
  }
}

const UnitViews& CpuGradientSink::open(int index) {
  Unit& unit = at(index);
  if (!unit.is_open) {
    for (const Unit& other : units_) SLUICE_CHECK(!other.is_open, "one unit at a time accumulates");
    // The first gradient of a step: what was summed before is from the previous step.
    if (unit.finished)
      for (Unit& each : units_) each.finished = false;
    unit.is_open = true;
    if (std::exchange(unit.is_kept, false)) return unit.gradients;
    for (const offload::ElementRange& range : unit.zeroed)
      std::memset(unit.first + range.first, 0, range.elements * sizeof(float));
    std::fill(unit.borrowed_sums.begin(), unit.borrowed_sums.end(), 0.0F);
  }
  return unit.gradients;
}

Status CpuGradientSink::keep(int index) {
  Unit& unit = at(index);
  SLUICE_CHECK(unit.is_open && options_.keeps_sums, "keep() of an open unit, in a step of waves");
  unit.is_open = false;
  unit.is_kept = true;
  return {};
}

Status CpuGradientSink::finish(int index) {
  Unit& unit = at(index);
  SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
  unit.is_open = false;
  unit.finished = true;
  unit.sum->reset(0);
  if (unit.elements == 0) return {};
  unit.borrowed_by.take_over();
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
