#include "offload/state/optimizer_offloader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/check.h"
#include "offload/state/cpu_state.h"
#include "offload/state/gpu_state.h"
#include "offload/state/nvme_state.h"
#include "offload/state/state_footprint.h"
#include "offload/state/unit_update.h"

namespace sluice::offload {
namespace {

using Options = OptimizerOffloader::Options;
using Environment = OptimizerOffloader::Environment;

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

bool places_on(const Options& options, Tier tier) {
  return std::any_of(options.placement.begin(), options.placement.end(),
                     [&](const SubGroup& sub_group) { return sub_group.tier == tier; });
}

Status check_environment(const Options& options, const Environment& environment) {
  if (environment.executor == nullptr) return invalid("the optimizer needs an executor");
  if (places_on(options, Tier::kGpu) && environment.device == nullptr)
    return invalid("optimizer state is placed on tier gpu, and there is no device tier");
  if (places_on(options, Tier::kNvme) &&
      (environment.reads == nullptr || environment.writes == nullptr))
    return invalid("optimizer state is placed on tier nvme, and there is no queue for it");
  return {};
}

NvmeState::Options nvme_options(const Options& options) {
  return {.kind = {options.form, options.grad_type, options.isa},
          .record_elements = options.record_elements,
          .swap = options.swap,
          .store = options.store,
          .lock = options.lock,
          .huge_pages = options.huge_pages,
          .in_place = options.in_place,
          .adopt = options.adopt};
}

}  // namespace

// ---- creation --------------------------------------------------------------------------------

Result<OptimizerOffloader::MemoryPlan> OptimizerOffloader::memory_plan(const Options& options) {
  SLUICE_RETURN_IF_ERROR(check_placement(options.units, options.placement));
  const auto footprint = StateFootprint::of({.form = options.form,
                                             .record_elements = options.record_elements,
                                             .in_place = options.in_place},
                                            options.placement);
  MemoryPlan plan{.cpu_state_bytes = footprint.cpu_bytes(),
                  .gpu_state_bytes = footprint.gpu_bytes(),
                  .transfer_bytes = footprint.transfer_bytes(options.form)};
  if (places_on(options, Tier::kNvme)) {
    SLUICE_ASSIGN_OR_RETURN(
        const NvmeState::Plan nvme,
        NvmeState::plan(nvme_options(options), options.units, options.placement));
    plan.swap_buffer_bytes = nvme.buffer_bytes;
    plan.nvme_bytes = nvme.store_bytes;
  }
  return plan;
}

Result<std::unique_ptr<OptimizerOffloader>> OptimizerOffloader::create(
    const Options& options, const Environment& environment) {
  SLUICE_RETURN_IF_ERROR(check_placement(options.units, options.placement));
  SLUICE_RETURN_IF_ERROR(check_environment(options, environment));
  std::unique_ptr<OptimizerOffloader> offloader(new OptimizerOffloader(options, environment));
  SLUICE_ASSIGN_OR_RETURN(offloader->worker_,
                          UpdateWorker::create([it = offloader.get()] { it->run_step(); }));
  SLUICE_RETURN_IF_ERROR(offloader->make_tiers());
  return offloader;
}

OptimizerOffloader::OptimizerOffloader(const Options& options, const Environment& environment)
    : options_(options),
      environment_(environment),
      needs_(options.units.size()),
      progress_(std::make_unique<UnitProgress>(options.units.size())) {
  for (const SubGroup& sub_group : options.placement) {
    Needs& needs = needs_[static_cast<std::size_t>(sub_group.unit)];
    (sub_group.tier == Tier::kGpu ? needs.gpu : needs.host) = true;
    group_count_ = std::max(group_count_, static_cast<std::size_t>(sub_group.group) + 1);
  }
  for (const UnitSpec& unit : options.units) {
    ranges_.push_back(scalar_ranges(unit));
    for (const ScalarRange& range : ranges_.back())
      group_count_ = std::max(group_count_, static_cast<std::size_t>(range.group) + 1);
  }
  groups_.reserve(group_count_);
}

OptimizerOffloader::~OptimizerOffloader() = default;

// The store comes last: it is the only tier that a later failure would have to clean up.
Status OptimizerOffloader::make_tiers() {
  const StateKind kind{options_.form, options_.grad_type, options_.isa};
  if (places_on(options_, Tier::kGpu)) {
    SLUICE_ASSIGN_OR_RETURN(gpu_, GpuState::create(kind, options_.placement, *environment_.device));
  }
  if (places_on(options_, Tier::kCpu)) {
    SLUICE_ASSIGN_OR_RETURN(cpu_, CpuState::create(kind, options_.placement, options_.huge_pages,
                                                   *environment_.executor));
  }
  if (places_on(options_, Tier::kNvme)) {
    SLUICE_ASSIGN_OR_RETURN(
        nvme_,
        NvmeState::create(nvme_options(options_), options_.units, options_.placement,
                          {environment_.reads, environment_.writes}, *environment_.executor));
  }
  return {};
}

const std::string& OptimizerOffloader::unit_name(int unit) const {
  return options_.units[static_cast<std::size_t>(unit)].name;
}

// ---- a step ----------------------------------------------------------------------------------

Status OptimizerOffloader::prefetch() {
  worker_->wait();
  SLUICE_RETURN_IF_ERROR(progress_->status());
  if (!restored_) return invalid("there is no optimizer state yet: restore() comes first");
  if (nvme_ != nullptr) nvme_->announce();
  return {};
}

Status OptimizerOffloader::check_step(const Step& step) const {
  if (!restored_) return invalid("there is no optimizer state yet: restore() comes first");
  SLUICE_RETURN_IF_ERROR(check_changeable());
  if (step.source == nullptr) return invalid("a step needs a source of parameters and gradients");
  if (step.groups.size() < group_count_) {
    return invalid("a step needs the scalars of " + std::to_string(group_count_) +
                   " parameter groups and was given those of " +
                   std::to_string(step.groups.size()));
  }
  return {};
}

// While a generation is being named, the store may not write.
Status OptimizerOffloader::check_changeable() const {
  if (nvme_ == nullptr || !nvme_->store().is_naming()) return {};
  return invalid("the state is frozen: keep_frozen() or drop_frozen() comes before a change");
}

Status OptimizerOffloader::step(const Step& step) {
  SLUICE_RETURN_IF_ERROR(end_step());
  SLUICE_RETURN_IF_ERROR(check_step(step));
  groups_.assign(step.groups.begin(),
                 step.groups.begin() + static_cast<std::ptrdiff_t>(group_count_));
  rounding_ = {.run_seed = options_.run_seed, .step = step.number};
  source_ = step.source;
  keeps_parameters_ = parameters_kept_ = step.keeps_parameters;
  progress_->begin_step();
  if (nvme_ != nullptr) nvme_->begin_pass();
  if (step.background) {
    worker_->start();
    return {};
  }
  run_step();
  return progress_->status();
}

void OptimizerOffloader::run_step() {
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit) {
    auto arrays = update_on_host(unit);
    if (!arrays.ok()) {
      progress_->fail(std::move(arrays).error().with_context("updating unit " + unit_name(unit)));
      return;
    }
    source_->ready(unit);
    progress_->host_done(unit, *arrays);
  }
}

UnitUpdate OptimizerOffloader::update_of(int unit, const UnitArrays& arrays) const {
  return {.unit = unit,
          .groups = groups_,
          .ranges = ranges_[static_cast<std::size_t>(unit)],
          .arrays = arrays,
          .moment_keys = moment_keys(rounding_, unit),
          .shard_element = options_.units[static_cast<std::size_t>(unit)].first_element,
          .keeps_parameters = keeps_parameters_};
}

Result<UnitArrays> OptimizerOffloader::update_on_host(int unit) {
  SLUICE_ASSIGN_OR_RETURN(const UnitArrays arrays, begin_unit(*source_, unit, true));
  const UnitUpdate update = update_of(unit, arrays);
  if (cpu_ != nullptr) SLUICE_RETURN_IF_ERROR(cpu_->update(update));
  if (nvme_ != nullptr) SLUICE_RETURN_IF_ERROR(nvme_->update(update));
  return arrays;
}

Status OptimizerOffloader::update_on_gpu(int unit, const UnitArrays& arrays) {
  if (gpu_ == nullptr) return {};
  Status enqueued = gpu_->update(update_of(unit, arrays));
  if (enqueued.ok()) return {};
  return std::move(enqueued).error().with_context("updating unit " + unit_name(unit) +
                                                  " on the GPU");
}

Result<UnitArrays> OptimizerOffloader::begin_unit(UnitSource& source, int unit,
                                                  bool with_gradients) const {
  SLUICE_ASSIGN_OR_RETURN(const UnitArrays arrays, source.begin(unit));
  const Needs needs = needs_[static_cast<std::size_t>(unit)];
  const bool param_missing =
      (needs.host && arrays.param == nullptr) || (needs.gpu && arrays.gpu_param == nullptr);
  const bool grad_missing =
      (needs.host && arrays.grad == nullptr) || (needs.gpu && arrays.gpu_grad == nullptr);
  if (param_missing || (with_gradients && grad_missing)) {
    return invalid("unit " + unit_name(unit) + " came without the " +
                   (param_missing ? "parameters" : "gradients") + " that its placement needs");
  }
  return arrays;
}

Status OptimizerOffloader::wait_ready(int unit) {
  SLUICE_CHECK(unit >= 0 && static_cast<std::size_t>(unit) < options_.units.size(), "a unit");
  return progress_->wait(
      unit, [this](int it, const UnitArrays& arrays) { return update_on_gpu(it, arrays); });
}

bool OptimizerOffloader::is_ready(int unit) const { return progress_->host_is_done(unit); }

Status OptimizerOffloader::end_step() {
  worker_->wait();
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit)
    SLUICE_RETURN_IF_ERROR(wait_ready(unit));
  return progress_->status();
}

Status OptimizerOffloader::drain() {
  SLUICE_RETURN_IF_ERROR(end_step());
  if (nvme_ == nullptr) return {};
  Status drained = nvme_->drain();
  return drained.ok() ? Status() : fail(std::move(drained).error());
}

Status OptimizerOffloader::fail(Error error) {
  progress_->fail(std::move(error));
  return progress_->status();
}

// ---- all state -------------------------------------------------------------------------------

TierState& OptimizerOffloader::tier_of(const SubGroup& sub_group) const {
  switch (sub_group.tier) {
    case Tier::kGpu:
      return *gpu_;
    case Tier::kNvme:
      return *nvme_;
    case Tier::kCpu:
      break;
  }
  return *cpu_;
}

// Begins each unit, except those of which no sub-group is wanted, and visits those that are.
template <typename Wanted, typename Visit>
Status OptimizerOffloader::for_each(UnitSource& source, const Wanted& wanted, const Visit& visit) {
  auto sub_group = options_.placement.begin();
  const auto end = options_.placement.end();
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit) {
    const auto of_next =
        std::find_if(sub_group, end, [&](const SubGroup& it) { return it.unit != unit; });
    if (sub_group != of_next && std::none_of(sub_group, of_next, wanted)) {
      sub_group = of_next;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const UnitArrays arrays, begin_unit(source, unit, false));
    for (; sub_group != of_next; ++sub_group)
      if (wanted(*sub_group)) SLUICE_RETURN_IF_ERROR(visit(*sub_group, arrays));
    source.ready(unit);
  }
  return {};
}

Status OptimizerOffloader::begin_restore(const StateSweep& sweep) {
  if (gpu_ != nullptr) SLUICE_RETURN_IF_ERROR(gpu_->begin_transfer(sweep.threads(), options_.hook));
  return nvme_ != nullptr ? nvme_->begin_restore() : Status();
}

Status OptimizerOffloader::restore(UnitSource& source, const Fill& fill, Calls calls,
                                   std::int64_t after_step) {
  SLUICE_RETURN_IF_ERROR(drain());
  SLUICE_RETURN_IF_ERROR(check_changeable());
  parameters_kept_ = false;
  StateSweep sweep(*environment_.executor, fill, StateSweep::Direction::kRestore, calls,
                   options_.units, {.run_seed = options_.run_seed, .step = after_step});
  Status restored = begin_restore(sweep);
  if (restored.ok()) {
    const auto all = [](const SubGroup&) { return true; };
    restored = for_each(source, all, [&](const SubGroup& sub_group, const UnitArrays& arrays) {
      return tier_of(sub_group).restore(sub_group, arrays, sweep);
    });
  }
  if (restored.ok() && nvme_ != nullptr) restored = nvme_->end_restore();
  if (gpu_ != nullptr) gpu_->end_transfer();
  if (!restored.ok())
    return fail(std::move(restored).error().with_context("setting the optimizer state"));
  restored_ = true;
  return {};
}

Status OptimizerOffloader::begin_snapshot(const StateSweep& sweep, SnapshotOf what) {
  if (gpu_ != nullptr) SLUICE_RETURN_IF_ERROR(gpu_->begin_transfer(sweep.threads(), options_.hook));
  if (nvme_ != nullptr && what == SnapshotOf::kAll) nvme_->begin_pass();
  return {};
}

Status OptimizerOffloader::snapshot(UnitSource& source, const Take& take, Calls calls,
                                    SnapshotOf what) {
  SLUICE_RETURN_IF_ERROR(drain());
  if (!restored_) return invalid("there is no optimizer state yet: restore() comes first");
  StateSweep sweep(*environment_.executor, take, StateSweep::Direction::kSnapshot, calls,
                   options_.units);
  SLUICE_RETURN_IF_ERROR(begin_snapshot(sweep, what));
  bool state_failed = false;  // if false, an error came from the caller's function
  const auto wanted = [&](const SubGroup& it) {
    return what == SnapshotOf::kAll || it.tier != Tier::kNvme;
  };
  Status done = for_each(source, wanted, [&](const SubGroup& sub_group, const UnitArrays& arrays) {
    Status looked = tier_of(sub_group).snapshot(sub_group, arrays, sweep);
    state_failed = !looked.ok() && sweep.visited().ok();
    return looked;
  });
  if (gpu_ != nullptr) gpu_->end_transfer();
  if (done.ok()) return {};
  if (!state_failed && nvme_ != nullptr && what == SnapshotOf::kAll) {
    Status abandoned = nvme_->abandon_pass();
    state_failed = !abandoned.ok();
    if (state_failed) done = std::move(abandoned);
  }
  Error error = std::move(done).error().with_context("reading the optimizer state");
  return state_failed ? fail(std::move(error)) : Status(std::move(error));
}

Status OptimizerOffloader::amend_unit(UnitSource& source, int unit, StateSweep& sweep) {
  SLUICE_ASSIGN_OR_RETURN(const UnitArrays arrays, begin_unit(source, unit, false));
  for (const SubGroup& sub_group : options_.placement)
    if (sub_group.unit == unit)
      SLUICE_RETURN_IF_ERROR(tier_of(sub_group).amend(sub_group, arrays, sweep));
  source.ready(unit);
  return {};
}

Status OptimizerOffloader::amend(UnitSource& source, std::span<const int> units,
                                 const Fill& change) {
  SLUICE_RETURN_IF_ERROR(drain());
  if (!restored_) return invalid("there is no optimizer state yet: restore() comes first");
  SLUICE_RETURN_IF_ERROR(check_changeable());
  SLUICE_CHECK(std::is_sorted(units.begin(), units.end()), "units in ascending order");
  parameters_kept_ = false;
  StateSweep sweep(*environment_.executor, change, StateSweep::Direction::kAmend, Calls::kInOrder,
                   options_.units);
  Status amended =
      gpu_ != nullptr ? gpu_->begin_transfer(sweep.threads(), options_.hook) : Status();
  if (amended.ok() && nvme_ != nullptr) amended = nvme_->begin_amend(units);
  for (const int unit : units)
    if (amended.ok()) amended = amend_unit(source, unit, sweep);
  if (gpu_ != nullptr) gpu_->end_transfer();
  if (amended.ok()) return {};
  return fail(std::move(amended).error().with_context("changing the optimizer state"));
}

// ---- a checkpoint in place -------------------------------------------------------------------

// Only a failed write harms the run.
Status OptimizerOffloader::store_parameters(UnitSource& source) {
  const auto on_nvme = [](const SubGroup& it) { return it.tier == Tier::kNvme; };
  SLUICE_RETURN_IF_ERROR(
      for_each(source, on_nvme, [&](const SubGroup& sub_group, const UnitArrays& arrays) {
        Status stored = nvme_->store_parameters(sub_group, arrays);
        return stored.ok() ? stored : fail(std::move(stored).error());
      }));
  Status drained = nvme_->drain();
  return drained.ok() ? drained : fail(std::move(drained).error());
}

Result<FrozenState> OptimizerOffloader::freeze(UnitSource& source, const std::string& checkpoint) {
  if (nvme_ == nullptr || !options_.in_place)
    return invalid("no state is in a store with two places");
  SLUICE_RETURN_IF_ERROR(drain());
  if (!restored_) return invalid("there is no optimizer state yet: restore() comes first");
  SLUICE_RETURN_IF_ERROR(check_changeable());
  if (!parameters_kept_ && nvme_->keeps_parameters())
    SLUICE_RETURN_IF_ERROR(store_parameters(source));
  parameters_kept_ = true;
  return nvme_->freeze(checkpoint);
}

Status OptimizerOffloader::keep_frozen() { return nvme_->store().keep_frozen(); }

Status OptimizerOffloader::drop_frozen() { return nvme_->store().drop_frozen(); }

// ---- the end ---------------------------------------------------------------------------------

Status OptimizerOffloader::remove() {
  worker_->wait();
  progress_->fail(Error(ErrorCode::kCancelled, "the optimizer state was removed"));
  if (nvme_ == nullptr) return {};
  return nvme_->remove();
}

swap::SwapStats OptimizerOffloader::stats() const {
  return nvme_ != nullptr ? nvme_->stats() : swap::SwapStats{};
}

}  // namespace sluice::offload
