#include "engine/plan/placed_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/plan/planner_input.h"

namespace sluice::engine {
namespace {

using offload::TierBytes;

struct Candidate {
  offload::PlannerInput input;
  offload::PlacementPlan placement;
};

// Whether `plan` is better: only it fits, it is faster by more than the prediction's error, or
// neither fits and it lacks less.
bool is_better(const offload::PlacementPlan& plan, const offload::PlacementPlan& than) {
  constexpr double kWorthIt = 0.98;
  if (plan.fits != than.fits) return plan.fits;
  if (!plan.fits) return plan.missing.total() < than.missing.total();
  return plan.prediction.step_s < kWorthIt * than.prediction.step_s;
}

// Tries waves of all of a step's micro-batches, a half, a quarter, ..., one, and returns the best.
// Fewer waves need less traffic, but more memory for activations.
Result<Candidate> best_candidate(const PlanSubject& subject, const ProbeReport& machine,
                                 const TierBytes& budget) {
  const std::int64_t all = subject.config.batch.accumulation;
  const std::int64_t asked = subject.config.placement.wave_micro_batches;
  std::optional<Candidate> best;
  for (std::int64_t wave = asked > 0 ? std::min(asked, all) : all;; wave = (wave + 1) / 2) {
    Candidate made;
    SLUICE_ASSIGN_OR_RETURN(made.input, input_of(subject, subject.config, machine, budget, wave));
    SLUICE_ASSIGN_OR_RETURN(made.placement, offload::plan_placement(made.input));
    if (!best || is_better(made.placement, best->placement)) best = std::move(made);
    if (asked > 0 || wave <= 1) return *std::move(best);
  }
}

Result<PlacedRun> place_with(const PlanSubject& subject, PlanMachine machine) {
  const TierBytes budget = budget_on(machine, subject);
  SLUICE_ASSIGN_OR_RETURN(
      Candidate best, best_candidate(subject, machine.report, budget.beyond(subject.beside.bytes)));
  SLUICE_ASSIGN_OR_RETURN(MemoryPlan memory,
                          plan_memory(subject.config, subject.model,
                                      {.on_gpu = subject.on_gpu,
                                       .places = best.placement.places,
                                       .block_slots = best.input.step.slots(),
                                       .wave_micro_batches = best.input.step.waves.of_a_wave,
                                       .ranks = {.rank = 0, .world = subject.ranks.world},
                                       .names = subject.names,
                                       .keeps_sums = subject.is_module,
                                       .nvme_weights = machine.stripes.chosen()}));
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
                                       std::int64_t wave_micro_batches) {
  return planner_input({.config = config,
                        .model = subject.model,
                        .machine = machine,
                        .on_gpu = subject.on_gpu,
                        .budget = budget,
                        .wave_micro_batches = wave_micro_batches,
                        .ranks = subject.ranks,
                        .names = subject.names,
                        .keeps_sums = subject.is_module});
}

}  // namespace sluice::engine
