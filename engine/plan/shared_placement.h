// SharedPlacement: a planned placement that is used again. The other ranks of a run take it from
// the first rank's plan. A run that continues in the store of its checkpoint keeps it. Places are
// per unit. All ranks have equal shards of a unit, except that the last one may be smaller.
//
// Threads: one; share_placement() and first_rank_plan() are collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/plan/run_plan.h"
#include "engine/probe/link_probe.h"

namespace sluice::engine {

struct SharedPlacement {
  std::vector<offload::UnitPlacement> places;  // for the first rank's shards
  int block_slots = 0;
  std::int64_t wave_micro_batches = 0;
  std::vector<int> nvme_weights;
  bool moves_gradients = false;  // RunSpec::moves_gradients
  bool copies_on_gpu = false;    // RunSpec::copies_on_gpu

  static SharedPlacement of(const RunPlan& plan);
  // JSON. parse() takes any text, and returns kCorrupt if to_text() did not write it.
  std::string to_text() const;
  static Result<SharedPlacement> parse(const std::string& text);
  // The options of one rank: if its shard of a unit is smaller, the last tiers have less of it.
  // kInvalidArgument: the places are for another model.
  Result<PlanOptions> options(const ModelLayout& model, const offload::RankPart& part,
                              bool on_gpu) const;

  friend bool operator==(const SharedPlacement&, const SharedPlacement&) = default;
};

// Shares the first rank's places; `own` must be set there. A collective: all ranks of the link call
// it.
Result<SharedPlacement> share_placement(Communicator& link,
                                        const std::optional<SharedPlacement>& own);

struct FirstRankPlan {
  std::optional<RunPlan> plan;  // on the first rank; the others only have its places
  SharedPlacement places;
};

// The first rank plans, with the measured rates between all ranks (probe_link()) if there are
// several. An error of `plan` is returned only on that rank; it must abort() the others, which wait
// for it.
using PlanWithLink = std::function<Result<RunPlan>(const std::optional<MeasuredLink>&)>;
Result<FirstRankPlan> first_rank_plan(Communicator& link, const config::Config& config,
                                      const LinkProbeOptions& probe, const PlanWithLink& plan);

}  // namespace sluice::engine
