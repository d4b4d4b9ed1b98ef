// RankPlaces: the placement that all ranks of a run take from the one plan, which the first of them
// makes: places are of units, and every rank has as large a shard of each but, at its end, the
// last.
//
// Threads: one; share_places() and plan_of_first() are collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/plan/run_plan.h"
#include "engine/probe/link_probe.h"

namespace sluice::engine {

struct RankPlaces {
  std::vector<offload::UnitPlacement> places;  // of the first rank's shards
  int block_slots = 0;
  std::int64_t wave_micro_batches = 0;
  std::vector<int> nvme_weights;

  static RankPlaces of(const RunPlan& plan);
  // Of a rank: what its shard of a unit lacks is missing of the last tiers. kInvalidArgument: they
  // are of another model.
  Result<PlanOptions> options(const ModelLayout& model, const offload::RankPart& part,
                              bool on_gpu) const;

  friend bool operator==(const RankPlaces&, const RankPlaces&) = default;
};

// What the first rank has: `own` is there. All ranks of the link call it.
Result<RankPlaces> share_places(Communicator& link, const std::optional<RankPlaces>& own);

// Null: there is one rank.
offload::RankGroup rank_group(const Communicator* link);

struct PlanOfFirst {
  std::optional<RunPlan> plan;  // of the first rank; the others have its places
  RankPlaces places;
};

// The first rank plans, with what all of them exchange per second (probe_link()). Without a link
// there is only that one. An error of `plan` is that rank's alone: it has to abort() the others,
// which wait for it.
using PlanWithLink = std::function<Result<RunPlan>(const std::optional<MeasuredLink>&)>;
Result<PlanOfFirst> plan_of_first(Communicator* link, const config::Config& config,
                                  const LinkProbeOptions& probe, const PlanWithLink& plan);

}  // namespace sluice::engine
