#include "engine/plan/placed_run.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "aio/units.h"
#include "engine/budget/gradient_plan.h"
#include "engine/plan/described_machine.h"
#include "engine/plan/planner_input.h"
#include "engine/probe/machine_probe.h"
#include "offload/planner/at_once.h"

namespace sluice::engine {
namespace {

using offload::TierBytes;

std::uint64_t bytes_of_gib(double gib) { return static_cast<std::uint64_t>(gib * kGiB); }

bool is_described(const DescribedMachine& machine) {
  return machine.describes_gpu() || machine.describes_host() || machine.describes_drives();
}

Result<ProbeReport> report_on(const PlanSubject& subject, const PlanRunOptions& asked) {
  if (is_described(subject.machine)) return described_machine(subject, asked);
  return probe_machine(subject.config, {.cache_path = asked.cache_path,
                                        .refresh = asked.refresh,
                                        .unix_s = asked.unix_s,
                                        .disturbed_max_age_s = asked.disturbed_max_age_s,
                                        .units = !subject.is_module,
                                        .local_ranks = subject.ranks.local_world,
                                        .on_progress = asked.on_progress});
}

// Estimates unit times, because this program cannot run a module's passes.
void estimate_described(const PlanSubject& subject, ProbeReport& report) {
  const config::Config& config = subject.config;
  report.units =
      estimate_units(subject.model,
                     {.micro_batch = config.batch.micro,
                      .tokens = config.data.sequence_tokens,
                      .number_bytes = config.precision == config::Precision::kFp32 ? 4 : 2},
                     rates_for_estimates(config, report));
  report.units_when.estimated = true;
}

void set_link(const PlanSubject& subject, const PlanRunOptions& asked, ProbeReport& report) {
  if (subject.ranks.world == 1) return;
  if (asked.link) {
    report.speeds.link = asked.link->speeds;
    report.link_when = asked.link->when;
    report.measured.push_back(asked.link->key);
    return;
  }
  report.speeds.link = described_link(subject.machine, subject.on_gpu);
  report.link_when.estimated = true;
}

// The room of a whole host.
std::uint64_t nvme_room(const PlanMachine& machine, const PlanSubject& subject) {
  if (machine.stripes.paths.empty()) return 0;
  if (subject.machine.nvme_gib) return bytes_of_gib(*subject.machine.nvme_gib);
  if (subject.config.budget.nvme_gib) return bytes_of_gib(*subject.config.budget.nvme_gib);
  return machine.stripes.room();
}

}  // namespace

Result<PlanMachine> plan_machine(const PlanSubject& subject, const PlanRunOptions& asked,
                                 aio::FileSystem& files) {
  const DescribedMachine& described = subject.machine;
  PlanMachine machine{.facts = machine_facts(subject.config)};
  ProbeReport& report = machine.report;
  SLUICE_ASSIGN_OR_RETURN(report, report_on(subject, asked));
  // A described GPU's units were already estimated.
  if (subject.is_module && !described.describes_gpu()) estimate_described(subject, report);
  report.assumed.insert(report.assumed.end(), subject.assumed.begin(), subject.assumed.end());
  if (is_described(described))
    report.from_here = from_here(described, subject.config, subject.on_gpu);
  set_link(subject, asked, report);
  machine.stripes = nvme_stripes(subject.config, report, described.nvme_gib ? nullptr : &files,
                                 asked.file_system_of);
  return machine;
}

TierBytes budget_on(const PlanMachine& machine, const PlanSubject& subject) {
  constexpr std::uint64_t kUnknown = std::uint64_t{1} << 46;  // not reported by the machine
  const config::Budget given = planned_budget(subject.config.budget, subject.machine);
  const offload::Topology& ranks = subject.ranks;
  TierBytes budget{.cpu = ranks.share_of(host_room(given, machine.facts).value_or(kUnknown)),
                   .nvme = ranks.share_of(nvme_room(machine, subject))};
  if (subject.on_gpu) {
    const std::uint64_t gpu = gpu_room(given, machine.facts).value_or(kUnknown);
    budget.gpu = static_cast<std::uint64_t>(static_cast<double>(gpu) * (1 - kGpuSlack));
  }
  return budget;
}

TierBytes available_on(const PlanMachine& machine, const PlanSubject& subject) {
  const DescribedMachine& described = subject.machine;
  std::uint64_t host = host_free(machine.facts).value_or(0);
  if (described.cpu_gib) host = bytes_of_gib(*described.cpu_gib);
  return {.gpu = described.describes_gpu() ? bytes_of_gib(described.gpu_memory_gib())
                                           : gpu_free(machine.facts).value_or(0),
          .cpu = subject.ranks.share_of(host)};
}

namespace {

double written_per_s(const offload::PlacementPlan& plan) {
  return plan.prediction.nvme_write_bytes / plan.prediction.step_s;
}

// Whether `plan` is better: only it fits, it is faster by more than the prediction's error, or
// neither fits and it lacks less memory, or else writes less.
bool is_better(const offload::PlacementPlan& plan, const offload::PlacementPlan& than) {
  constexpr double kWorthIt = 0.98;
  if (plan.fits != than.fits) return plan.fits;
  if (plan.missing.total() != than.missing.total())
    return plan.missing.total() < than.missing.total();
  if (!plan.fits) return written_per_s(plan) < written_per_s(than);
  return plan.prediction.step_s < kWorthIt * than.prediction.step_s;
}

// A step's micro-batches, a half, a quarter, ..., one.
std::vector<std::int64_t> wave_sizes(const config::Config& config) {
  const std::int64_t all = config.batch.accumulation;
  const std::int64_t asked = config.placement.wave_micro_batches;
  if (asked > 0) return {std::min(asked, all)};
  std::vector<std::int64_t> sizes;
  for (std::int64_t wave = all; sizes.empty() || sizes.back() > 1; wave = (wave + 1) / 2)
    sizes.push_back(wave);
  return sizes;
}

// Whether gradients on NVMe could be better: nothing fits, or there is state on NVMe that their
// memory could hold.
bool could_move_gradients(const PlanSubject& subject, const config::Config& config,
                          const offload::PlacementPlan& placement) {
  const auto has_state_on_nvme = [](const offload::UnitPlacement& it) {
    return it.nvme_elements > 0;
  };
  return may_move_gradients(subject, config) &&
         (!placement.fits ||
          std::any_of(placement.places.begin(), placement.places.end(), has_state_on_nvme));
}

}  // namespace

Result<Candidate> best_candidate(const PlanSubject& subject, const config::Config& config,
                                 const ProbeReport& machine, const TierBytes& budget) {
  const std::vector<std::int64_t> waves = wave_sizes(config);
  std::optional<Candidate> best;
  std::size_t best_wave = 0;
  const auto consider = [&](std::size_t first, std::size_t end, bool moves_gradients) -> Status {
    const auto make = [&](std::size_t i) -> Result<Candidate> {
      Candidate made;
      SLUICE_ASSIGN_OR_RETURN(made.input, input_of(subject, config, machine, budget,
                                                   {waves[first + i], moves_gradients}));
      SLUICE_ASSIGN_OR_RETURN(made.placement, offload::plan_placement(made.input));
      return made;
    };
    SLUICE_ASSIGN_OR_RETURN(auto candidates, offload::made_at_once<Candidate>(end - first, make));
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (best && !is_better(candidates[i].placement, best->placement)) continue;
      best = std::move(candidates[i]);
      best_wave = first + i;
    }
    return {};
  };
  SLUICE_RETURN_IF_ERROR(consider(0, waves.size(), /*moves_gradients=*/false));
  if (!could_move_gradients(subject, config, best->placement)) return *std::move(best);
  const bool fits = best->placement.fits;
  const std::size_t first = fits ? std::max<std::size_t>(best_wave, 1) - 1 : 0;
  const std::size_t end = fits ? std::min(best_wave + 2, waves.size()) : waves.size();
  SLUICE_RETURN_IF_ERROR(consider(first, end, /*moves_gradients=*/true));
  return *std::move(best);
}

namespace {

Result<PlacedRun> place_with(const PlanSubject& subject, PlanMachine machine) {
  const TierBytes budget = budget_on(machine, subject);
  SLUICE_ASSIGN_OR_RETURN(Candidate best, best_candidate(subject, subject.config, machine.report,
                                                         budget.beyond(subject.outside.bytes)));
  PlanOptions options{.on_gpu = subject.on_gpu,
                      .places = best.placement.places,
                      .block_slots = best.input.step.slots(),
                      .wave_micro_batches = best.input.step.waves.of_a_wave,
                      .ranks = subject.ranks.part(0),
                      .names = subject.names,
                      .keeps_sums = subject.is_module,
                      .moves_gradients = StepChoice::of(best.input).moves_gradients,
                      .nvme_weights = machine.stripes.chosen()};
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan memory, plan_memory(subject.config, subject.model, options));
  if (subject.config.communication.host_copy == config::HostCopy::kAuto) {
    // What is gathered stays on the GPU where the placement leaves room for it.
    options.copies_on_gpu = true;
    SLUICE_ASSIGN_OR_RETURN(MemoryPlan on_gpu, plan_memory(subject.config, subject.model, options));
    if (on_gpu.gpu_bytes() <= best.input.budget.gpu) memory = std::move(on_gpu);
  }
  return PlacedRun{.machine = std::move(machine),
                   .budget = budget,
                   .input = std::move(best.input),
                   .placement = std::move(best.placement),
                   .memory = std::move(memory)};
}

// Other weights of the paths, if one of them lacks the room for its stripes.
std::optional<std::vector<int>> weights_with_room(const PlanSubject& subject,
                                                  const PlacedRun& placed) {
  if (!may_restripe(subject.config, placed.machine.stripes)) return std::nullopt;
  std::uint64_t needed = placed.memory.nvme_bytes();
  if (!placed.placement.fits) {
    if (placed.placement.missing.nvme == 0) return std::nullopt;
    needed = std::max(needed, placed.input.budget.nvme + placed.placement.missing.nvme);
  }
  return roomier_weights(placed.machine.stripes, subject.ranks.of_host(needed));
}

}  // namespace

Result<PlacedRun> place_run(const PlanSubject& subject, PlanMachine machine) {
  SLUICE_ASSIGN_OR_RETURN(PlacedRun placed, place_with(subject, std::move(machine)));
  auto weights = weights_with_room(subject, placed);
  if (!weights) return placed;
  PlanMachine restriped = placed.machine;
  restripe(restriped.stripes, *std::move(weights), restriped.report);
  SLUICE_ASSIGN_OR_RETURN(PlacedRun other, place_with(subject, std::move(restriped)));
  if (!other.placement.fits) return placed;
  other.memory.notes.push_back(restriped_text(other.machine.stripes));
  return other;
}

Result<offload::PlannerInput> input_of(const PlanSubject& subject, const config::Config& config,
                                       const ProbeReport& machine, const TierBytes& budget,
                                       const StepChoice& choice) {
  return planner_input({.config = config,
                        .model = subject.model,
                        .machine = machine,
                        .on_gpu = subject.on_gpu,
                        .budget = budget,
                        .wave_micro_batches = choice.wave_micro_batches,
                        .ranks = subject.ranks,
                        .names = subject.names,
                        .keeps_sums = subject.is_module,
                        .moves_gradients = choice.moves_gradients});
}

bool may_move_gradients(const PlanSubject& subject, const config::Config& config) {
  return may_move_gradients(RunSpec{.config = config,
                                    .model = subject.model,
                                    .on_gpu = subject.on_gpu,
                                    .ranks = subject.ranks.part(0),
                                    .names = subject.names,
                                    .keeps_sums = subject.is_module});
}

}  // namespace sluice::engine
