// A run's plan on this machine, or on one that is described, with what is measured for it shown on
// a terminal and kept in the user's cache.
#pragma once

#include <optional>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/plan/run_plan.h"
#include "engine/probe/link_probe.h"

namespace sluice::tools {

struct PlanHereOptions {
  engine::DescribedMachine machine;
  bool refresh = false;
  bool with_what_ifs = false;
  bool with_growth = false;
  // One of a series of processes, such as the trials of sluice tune: what was measured while the
  // machine was busy serves all of them.
  bool of_a_series = false;
  offload::RankGroup ranks = {};
  std::optional<engine::MeasuredLink> link = {};  // PlanRunOptions::link
};

Result<engine::RunPlan> plan_here(const config::Config& config,
                                  const PlanHereOptions& options = {});

// Likewise, of what the ranks of a run measure of their link.
engine::LinkProbeOptions link_probe_here();

// A warning where `sluice train` would refuse the configuration's data: a plan needs none.
void warn_of_data(const config::Config& config);

// After a run whose steps took longer or shorter than planned: says so, and has what the plan was
// made of measured again next time.
void judge_plan(const config::Config& config, const engine::ProbeReport& machine);

}  // namespace sluice::tools
