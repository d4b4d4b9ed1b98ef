// Plans a run on this machine or on a described one. Measurements are shown on a terminal and
// cached for the user.
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
  bool with_longest_sequence = false;
  // One of a series of processes, such as the trials of sluice tune: values measured while the
  // machine was busy are used by all of them.
  bool of_a_series = false;
  offload::Topology ranks = {};
  std::optional<engine::MeasuredLink> link = {};  // PlanRunOptions::link
};

Result<engine::RunPlan> plan_here(const config::Config& config,
                                  const PlanHereOptions& options = {});

// The options with which the ranks of a run measure their link.
engine::LinkProbeOptions link_probe_here();

// Warns if `sluice train` would refuse the configuration's data; a plan needs no data.
void warn_of_data(const config::Config& config);

// Called after a run whose steps took longer or shorter than planned: says so, and discards the
// cached measurements that the plan used, so that the next plan measures again.
void judge_plan(const config::Config& config, const engine::ProbeReport& machine);

}  // namespace sluice::tools
