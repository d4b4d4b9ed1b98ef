#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/budget/gpu_plan.h"
#include "engine/model/zeroed_ranges.h"
#include "engine/step/gradient_sink.h"
#include "offload/adamw/grad_stats.h"

namespace sluice::engine {

using offload::ParamOffloader;

Result<std::unique_ptr<NvmeGradientSink>> NvmeGradientSink::create(const ModelLayout& model,
                                                                   aio::Executor& executor,
                                                                   ParamOffloader& places,
                                                                   const Options& options) {
  constexpr bool kHugePages = true;
  const auto map = [&](std::uint64_t bytes, aio::PageMemory& memory) -> Status {
    if (bytes == 0) return {};
    SLUICE_ASSIGN_OR_RETURN(memory, aio::PageMemory::map(bytes, kHugePages, &executor));
    return {};
  };
  std::uint64_t borrowed_bytes = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    borrowed_bytes += cpu_sink_borrowed_bytes(model, unit);
  aio::PageMemory borrowed;
  SLUICE_RETURN_IF_ERROR(map(borrowed_bytes, borrowed));
  aio::PageMemory sixteen_bit;
  SLUICE_RETURN_IF_ERROR(map(cpu_sink_cast_bytes(model, options.type), sixteen_bit));
  return std::unique_ptr<NvmeGradientSink>(new NvmeGradientSink(
      model, executor, places, options, std::move(borrowed), std::move(sixteen_bit)));
}

NvmeGradientSink::NvmeGradientSink(const ModelLayout& model, aio::Executor& executor,
                                   ParamOffloader& places, const Options& options,
                                   aio::PageMemory borrowed, aio::PageMemory sixteen_bit)
    : GradientSink(options.order, model.units()),
      model_(model),
      executor_(executor),
      places_(places),
      options_(options),
      borrowed_(std::move(borrowed)),
      sixteen_bit_(std::move(sixteen_bit)),
      units_(static_cast<std::size_t>(model.units())) {
  std::byte* next = borrowed_.data();
  for (int index = 0; index < model.units(); ++index) {
    Unit& unit = at(index);
    unit.borrowed = {reinterpret_cast<float*>(next), model.borrowed_sums(index).slot_elements};
    next += cpu_sink_borrowed_bytes(model, index);
    unit.zeroed = zeroed_ranges(model.layout(index));
    unit.sum = std::make_unique<offload::SquareSum>(model.layout(index).elements);
  }
}

Status NvmeGradientSink::open(int index) {
  SLUICE_CHECK(!open_, "one unit at a time accumulates");
  Unit& unit = at(index);
  const UnitLayout& layout = model_.layout(index);
  Open opened{.unit = index, .lease = {}, .own = {}, .gradients = {}};
  if (layout.elements > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        opened.lease, places_.acquire(index, unit.has_sums ? ParamOffloader::Access::kUpdate
                                                           : ParamOffloader::Access::kReplace));
    opened.own = fp32_views(layout, reinterpret_cast<float*>(opened.lease.bytes().data()));
  }
  opened.gradients = gradient_views(model_, index, opened.own,
                                    fp32_views(model_.borrowed_sums(index), unit.borrowed.data()));
  unit.is_complete = false;
  open_ = std::move(opened);
  return {};
}

const UnitViews& NvmeGradientSink::sums(int unit, int level) {
  SLUICE_CHECK(open_ && open_->unit == unit && level == 0, "the sum of the unit that is open");
  return open_->gradients;
}

void NvmeGradientSink::zero(int index, int /*level*/) {
  const Unit& unit = at(index);
  if (open_->lease) {
    auto* const own = reinterpret_cast<float*>(open_->lease.bytes().data());
    for (const offload::ElementRange& range : unit.zeroed)
      std::memset(own + range.first, 0, range.elements * sizeof(float));
  }
  std::fill(unit.borrowed.begin(), unit.borrowed.end(), 0.0F);
}

void NvmeGradientSink::fold(int /*unit*/, int /*level*/) {
  SLUICE_CHECK(false, "there is one sum of a unit");
}

Status NvmeGradientSink::keep(int index) {
  SLUICE_CHECK(open_ && open_->unit == index, "keep() of the unit that is open");
  at(index).has_sums = true;
  open_.reset();  // starts the write
  return {};
}

Status NvmeGradientSink::prefetch(int unit) {
  if (at(unit).has_sums && model_.layout(unit).elements > 0) places_.prefetch(unit);
  return {};
}

// In ascending order, like CpuGradientSink.
void NvmeGradientSink::take_over_borrowed() {
  const auto sums_of = [&](int borrower) {
    return fp32_views(model_.borrowed_sums(borrower), at(borrower).borrowed.data());
  };
  BorrowedSums::of(model_, open_->unit, open_->own, sums_of).add_to_lender();
}

Status NvmeGradientSink::finish(int index) {
  SLUICE_CHECK(open_ && open_->unit == index, "finish() of the unit that is open");
  Unit& unit = at(index);
  unit.has_sums = false;
  unit.is_complete = true;
  unit.sum->reset(0);
  const std::uint64_t elements = model_.layout(index).elements;
  if (elements > 0) {
    take_over_borrowed();
    std::byte* const place = open_->lease.bytes().data();
    const bool cast = options_.type != offload::GradType::kFp32;
    offload::cast_and_sum(
        executor_, options_.isa,
        {.grad = reinterpret_cast<const float*>(place),
         .to = options_.type,
         .out = cast ? reinterpret_cast<std::uint16_t*>(sixteen_bit_.data()) : nullptr,
         .elements = elements},
        *unit.sum);
    if (cast)
      std::memcpy(place, sixteen_bit_.data(), elements * offload::element_bytes(options_.type));
  }
  open_.reset();
  return {};
}

bool NvmeGradientSink::forget() {
  open_.reset();
  for (Unit& unit : units_) unit.has_sums = unit.is_complete = false;
  return true;
}

Result<GradientTotals> NvmeGradientSink::totals() {
  std::vector<const offload::SquareSum*> sums;
  for (const Unit& unit : units_) {
    SLUICE_CHECK(unit.is_complete, "totals() of a step whose gradients are complete");
    sums.push_back(unit.sum.get());
  }
  return gradient_totals(model_, sums);
}

Result<ParamOffloader::Lease> NvmeGradientSink::lease(int unit) {
  if (model_.layout(unit).elements == 0) return ParamOffloader::Lease();
  return places_.acquire(unit, ParamOffloader::Access::kRead);
}

}  // namespace sluice::engine
