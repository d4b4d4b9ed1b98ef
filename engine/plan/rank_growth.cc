#include "engine/plan/rank_growth.h"

#include "engine/plan/planner_input.h"

namespace sluice::engine {
namespace {

// Keeps the number of lanes per rank.
config::Config on_ranks(config::Config config, int before, int world) {
  config.run.lanes = config.run.lanes / before * world;
  return config;
}

// The budget of a rank in a group that may share its host among another number of ranks.
offload::TierBytes budget_on(const RunPlan& plan, const offload::RankGroup& ranks) {
  const offload::TierBytes& budget = plan.input.budget;
  return {.gpu = budget.gpu,
          .cpu = ranks.share_of(plan.ranks.of_host(budget.cpu)),
          .nvme = ranks.share_of(plan.ranks.of_host(budget.nvme))};
}

RankGrowth row_of(const RunPlan& plan, const offload::RankGroup& ranks,
                  const offload::PlacementPlan& placement) {
  RankGrowth row{.ranks = ranks, .fits = placement.fits};
  if (!placement.fits) return row;
  const offload::StepPrediction& step = placement.prediction;
  row.step_s = step.step_s;
  row.tokens_per_s =
      static_cast<double>(plan.tokens_per_step) / plan.ranks.world * ranks.world / step.step_s;
  row.link_exposed_s = step.link_exposed_s;
  row.bottleneck = step.bottleneck;
  return row;
}

// Linear growth means: as many tokens per rank as with the fewest ranks that fit.
void compare(std::vector<RankGrowth>& rows) {
  double of_rank = 0;
  for (RankGrowth& row : rows) {
    if (!row.fits) continue;
    const double own = row.tokens_per_s / row.ranks.world;
    if (of_rank == 0) of_rank = own;
    row.share_of_linear = own / of_rank;
  }
}

}  // namespace

std::vector<offload::RankGroup> growing_ranks(const offload::RankGroup& all) {
  std::vector<offload::RankGroup> groups;
  for (int ranks = 1; ranks < all.local_world; ranks *= 2)
    groups.push_back({.world = ranks, .local_world = ranks});
  for (int hosts = 1; hosts < all.hosts(); hosts *= 2)
    groups.push_back({.world = hosts * all.local_world, .local_world = all.local_world});
  groups.push_back(all);
  return groups;
}

Result<std::vector<RankGrowth>> rank_growth(const PlanSubject& subject, const RunPlan& plan) {
  std::vector<RankGrowth> rows;
  for (const offload::RankGroup& ranks : growing_ranks(plan.ranks)) {
    if (ranks == plan.ranks) {
      rows.push_back(row_of(plan, ranks, plan.placement));
      continue;
    }
    const config::Config config = on_ranks(subject.config, plan.ranks.world, ranks.world);
    SLUICE_ASSIGN_OR_RETURN(const offload::PlannerInput input,
                            planner_input({.config = config,
                                           .model = subject.model,
                                           .machine = plan.machine,
                                           .on_gpu = subject.on_gpu,
                                           .budget = budget_on(plan, ranks),
                                           .wave_micro_batches = plan.input.step.waves.of_a_wave,
                                           .ranks = ranks}));
    SLUICE_ASSIGN_OR_RETURN(const auto placement, offload::plan_placement(input));
    rows.push_back(row_of(plan, ranks, placement));
  }
  compare(rows);
  return rows;
}

}  // namespace sluice::engine
