#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/budget/gpu_plan.h"
#include "engine/model/zeroed_ranges.h"
#include "engine/step/gradient_sink.h"
#include "offload/adamw/grad_stats.h"
#include "offload/adamw/sum_nodes.h"

namespace sluice::engine {
namespace {

std::uint64_t most_elements(const ModelLayout& model) {
  std::uint64_t most = 0;
  for (int unit = 0; unit < model.units(); ++unit)
    most = std::max(most, model.layout(unit).elements);
  return most;
}

void add(std::span<float> to, std::span<float> sum) {
  if (to.empty()) return;
  const auto tensor = [](std::span<float> values) {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat);
  };
  tensor(to).add_(tensor(sum));
}

}  // namespace

// Assigns memory to units' sums, as cpu_sink_accumulator_bytes() counts it.
class CpuGradientSink::SumAllocator {
 public:
  SumAllocator(const ModelLayout& model, const Options& options, std::byte* gradients,
               std::byte* accumulators)
      : model_(model),
        options_(options),
        accumulators_(static_cast<std::size_t>(
            cpu_sink_accumulators(options.type, options.sums, options.ranks.part))),
        gradient_(gradients),
        own_(accumulators),
        borrowed_(accumulators +
                  cpu_sink_unit_sum_bytes(model, options.type, options.sums, options.ranks.part)) {}

  // The sums of the next unit, whose gradient takes `gradient_bytes`. With one accumulator fewer
  // than sums, the first sum is the gradient itself.
  std::vector<Sum> next(int unit, std::uint64_t gradient_bytes) {
    const UnitLayout& layout = model_.layout(unit);
    const UnitLayout& of_borrowed = model_.borrowed_sums(unit);
    std::byte* own = own_;
    std::vector<Sum> sums(static_cast<std::size_t>(options_.sums.levels));
    const std::size_t in_gradient = sums.size() - accumulators_;
    for (std::size_t level = 0; level < sums.size(); ++level) {
      const bool is_gradient = level < in_gradient;
      std::byte* const first = is_gradient ? gradient_ : own;
      if (!is_gradient) own += stride_bytes(layout);
      Sum& sum = sums[level];
      sum.own = {reinterpret_cast<float*>(first), layout.slot_elements};
      sum.borrowed = {reinterpret_cast<float*>(borrowed_), of_borrowed.slot_elements};
      sum.gradients = gradient_views(model_, unit, fp32_views(layout, sum.own.data()),
                                     fp32_views(of_borrowed, sum.borrowed.data()));
      borrowed_ += cpu_sink_borrowed_bytes(model_, unit);
    }
    if (options_.sums.kept > 0) own_ = own;
    gradient_ += gradient_bytes;
    return sums;
  }

 private:
  std::uint64_t stride_bytes(const UnitLayout& layout) const {
    if (options_.sums.kept > 0) return cpu_sink_sum_bytes(layout, options_.ranks.part);
    return cpu_sink_shared_bytes(model_, options_.ranks.part);
  }

  const ModelLayout& model_;
  const Options& options_;
  const std::size_t accumulators_;
  std::byte* gradient_;
  std::byte* own_;
  std::byte* borrowed_;
};

Result<std::unique_ptr<CpuGradientSink>> CpuGradientSink::create(const ModelLayout& model,
                                                                 aio::Executor& executor,
                                                                 const Options& options) {
  // A rank of many may have no element of a small model.
  const auto map = [&](std::uint64_t bytes) -> Result<aio::PageMemory> {
    if (bytes == 0) return aio::PageMemory();
    return aio::PageMemory::map(bytes, options.huge_pages, &executor);
  };
  SLUICE_ASSIGN_OR_RETURN(auto host,
                          map(cpu_sink_gradient_bytes(model, options.type, options.ranks.part)));
  SLUICE_ASSIGN_OR_RETURN(
      auto accumulators,
      map(cpu_sink_accumulator_bytes(model, options.type, options.sums, options.ranks.part)));
  return std::unique_ptr<CpuGradientSink>(
      new CpuGradientSink(model, executor, options, std::move(host), std::move(accumulators)));
}

CpuGradientSink::CpuGradientSink(const ModelLayout& model, aio::Executor& executor,
                                 const Options& options, aio::PageMemory host,
                                 aio::PageMemory accumulators)
    : GradientSink(options.order, model.units()),
      executor_(executor),
      options_(options),
      host_(std::move(host)),
      accumulators_(std::move(accumulators)),
      units_(static_cast<std::size_t>(model.units())),
      model_(model),
      roots_(static_cast<std::size_t>(options.order.roots())) {
  if (const int world = options.ranks.part.world; world > 1) {
    const std::uint64_t most = most_elements(model);
    exchange_.emplace(
        Exchange{.reduction = RankReduction(options.ranks, options.order, most),
                 .shard = std::vector<float>(offload::shard_piece_elements(most, world))});
  }
  SumAllocator sums(model, options_, host_.data(), accumulators_.data());
  std::uint64_t offset_bytes = 0;
  for (int index = 0; index < model.units(); ++index) {
    const UnitLayout& layout = model.layout(index);
    Unit& unit = at(index);
    unit.elements = layout.elements;
    unit.shard = offload::shard_of(layout.elements, options.ranks.part);
    unit.zeroed = zeroed_ranges(layout);
    unit.offset_bytes = offset_bytes;
    const std::uint64_t gradient_bytes =
        align_up(unit.shard.elements * offload::element_bytes(options.type), kCpuSinkAlignment);
    offset_bytes += gradient_bytes;
    unit.sums = sums.next(index, gradient_bytes);
    unit.sum = std::make_unique<offload::SquareSum>(layout.elements);
  }
  for (int lender = 0; lender < model.units(); ++lender) {
    if (BorrowedSums::borrowers(model, lender).empty()) continue;
    for (std::size_t level = 0; level < roots_.size(); ++level) {
      const UnitViews own = fp32_views(model.layout(lender), at(lender).sums[level].own.data());
      at(lender).borrowed_by.push_back(BorrowedSums::of(model, lender, own, [&](int borrower) {
        return fp32_views(model.borrowed_sums(borrower), at(borrower).sums[level].borrowed.data());
      }));
    }
  }
}

Status CpuGradientSink::open(int index) {
  Unit& unit = at(index);
  for (const Unit& other : units_) SLUICE_CHECK(!other.is_open, "one unit at a time accumulates");
  // This is the first gradient of a step: finished units are the previous step's.
  if (unit.finished)
    for (Unit& each : units_) each.finished = false;
  unit.is_open = true;
  return {};
}

const UnitViews& CpuGradientSink::sums(int index, int level) {
  return at(index).sums[static_cast<std::size_t>(level)].gradients;
}

void CpuGradientSink::zero(int index, int level) {
  const Unit& unit = at(index);
  const Sum& sum = unit.sums[static_cast<std::size_t>(level)];
  for (const offload::ElementRange& range : unit.zeroed)
    std::memset(sum.own.data() + range.first, 0, range.elements * sizeof(float));
  std::fill(sum.borrowed.begin(), sum.borrowed.end(), 0.0F);
}

void CpuGradientSink::fold(int index, int level) {
  const auto above = static_cast<std::size_t>(level);
  const Unit& unit = at(index);
  add(unit.sums[above - 1].own, unit.sums[above].own);
  add(unit.sums[above - 1].borrowed, unit.sums[above].borrowed);
}

Status CpuGradientSink::keep(int index) {
  Unit& unit = at(index);
  SLUICE_CHECK(unit.is_open && options_.sums.kept > 0,
               "keep() of an open unit, in a step of waves");
  unit.is_open = false;
  return {};
}

Status CpuGradientSink::finish(int index) {
  Unit& unit = at(index);
  SLUICE_CHECK(unit.is_open, "finish() of a unit that is open");
  unit.is_open = false;
  unit.finished = true;
  unit.sum->reset(unit.shard.first_element);
  if (unit.elements == 0) return {};
  SLUICE_ASSIGN_OR_RETURN(const float* const gradient, reduced(index));
  std::byte* const out = host_.data() + unit.offset_bytes;
  const bool cast = options_.type != offload::GradType::kFp32;
  if (!cast && exchange_) std::memcpy(out, gradient, unit.shard.elements * sizeof(float));
  offload::cast_and_sum(executor_, options_.isa,
                        {.grad = gradient,
                         .to = options_.type,
                         .out = cast ? reinterpret_cast<std::uint16_t*>(out) : nullptr,
                         .elements = unit.shard.elements},
                        *unit.sum);
  return {};
}

// The fp32 gradient of this rank's shard, summed over all ranks' micro-batches. The uses of a
// borrowed parameter are reduced one after the other and added last, so that the order of additions
// does not depend on the ranks.
Result<const float*> CpuGradientSink::reduced(int index) {
  const Unit& unit = at(index);
  if (!exchange_) {
    for (const BorrowedSums& borrowed : unit.borrowed_by) borrowed.add_to_lender();
    return unit.sums[0].own.data();
  }
  const std::uint64_t gathered =
      offload::gathered_elements(unit.elements, options_.ranks.part.world);
  for (std::size_t level = 0; level < roots_.size(); ++level)
    roots_[level] = unit.sums[level].own.data();
  auto& [reduction, shard] = *exchange_;
  SLUICE_ASSIGN_OR_RETURN(const std::span<float> first, reduction.reduce(roots_, gathered));
  if (unit.borrowed_by.empty()) return first.data();
  std::copy(first.begin(), first.end(), shard.begin());
  const BorrowedSums& borrowed = unit.borrowed_by.front();
  for (int use = 0; use < borrowed.uses(); ++use) {
    for (const BorrowedSums& of_level : unit.borrowed_by) of_level.copy_to_lender(use);
    SLUICE_ASSIGN_OR_RETURN(const std::span<float> sum, reduction.reduce(roots_, gathered));
    for (const offload::ElementRange& range : borrowed.ranges(use)) {
      const std::uint64_t begin = std::max(range.first, unit.shard.first_element);
      const std::uint64_t end = std::min(range.first + range.elements, unit.shard.end());
      for (std::uint64_t i = begin; i < end; ++i)
        shard[i - unit.shard.first_element] += sum[i - unit.shard.first_element];
    }
  }
  return shard.data();
}

Result<GradientTotals> CpuGradientSink::totals() {
  if (exchange_) {
    std::vector<offload::SquareSum*> sums;
    sums.reserve(units_.size());
    for (const Unit& unit : units_) sums.push_back(unit.sum.get());
    SLUICE_RETURN_IF_ERROR(gather_square_sums(options_.ranks, model_, sums));
  }
  std::vector<const offload::SquareSum*> sums;
  for (const Unit& unit : units_) {
    SLUICE_CHECK(unit.finished, "totals() of a step whose gradients are complete");
    sums.push_back(unit.sum.get());
  }
  return gradient_totals(model_, sums);
}

const void* CpuGradientSink::host_gradient(int unit) const {
  return host_.data() + units_[static_cast<std::size_t>(unit)].offset_bytes;
}

}  // namespace sluice::engine
