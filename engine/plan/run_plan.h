// RunPlan: what a training run of a configuration takes of a machine and how long a step will be:
// the planner's placement for everything that the configuration leaves open, the memory plan that
// follows, and the predicted step.
//
// With several ranks it is the plan of the first of them, and so of all: each has as large a part
// of a unit, of its host's memory, drives and cores, and a GPU to itself.
//
// The machine is this one, measured by the probe (seconds the first time, then from a file), or one
// that is described: then nothing is measured.
//
// Threads: one.
// Errors:  those of the configuration and of the probe. That nothing fits is not an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/plan/nvme_stripes.h"
#include "engine/preflight/machine_facts.h"
#include "engine/probe/probe_report.h"
#include "offload/planner/placement_planner.h"
#include "offload/planner/what_if.h"

namespace sluice::engine {

struct GpuSheet;

// A machine that need not be this one, by data sheets (gpu_sheets.h). Unset: as this one; of a GPU,
// what is unset is its sheet's, or else assumed (described_machine.h).
struct DescribedMachine {
  const GpuSheet* gpu = nullptr;
  std::optional<double> gpu_gib;
  std::optional<double> cpu_gib;
  std::optional<double> nvme_gib;
  std::optional<double> bus_gb_per_s;         // each way
  std::optional<double> tflops;               // dense, in the run's type, sums in fp32
  std::optional<double> gpu_memory_gb_per_s;  // read plus written
  std::optional<double> ram_gb_per_s;         // likewise
  std::optional<double> drive_read_gb_per_s;
  std::optional<double> drive_write_gb_per_s;
  // Of several ranks: between those of a host, each way of each; between hosts, each way of a whole
  // one; and of each call.
  std::optional<double> link_gb_per_s;
  std::optional<double> network_gb_per_s;
  std::optional<double> link_latency_us;
  std::optional<double> drive_tbw;  // TB that the drives are rated to be written in their life
  // Nothing of it is this machine's: what neither it nor a budget of the configuration gives is
  // assumed, and no folder is looked at.
  bool is_elsewhere = false;

  bool describes_host() const { return ram_gb_per_s.has_value(); }
  bool describes_drives() const { return drive_read_gb_per_s || drive_write_gb_per_s; }
  bool describes_link() const { return link_gb_per_s || network_gb_per_s || link_latency_us; }
  bool describes_gpu() const {
    return gpu != nullptr || gpu_gib || bus_gb_per_s || tflops || gpu_memory_gb_per_s;
  }
  // With what the sheet has.
  double gpu_memory_gib() const;
};

// A model that no family describes, whose passes somebody else computes (engine/module). Its units
// are not timed: their times are estimated from operations. A wave is one micro-batch.
struct DescribedModel {
  const ModelLayout& layout;
};

// What else a run takes of the tiers, beside its plan: it has as much less of its budget.
struct TakenBeside {
  offload::TierBytes bytes;
  offload::TierBytes at_most;  // where the budgets are as large as can be
};

struct PlanRunOptions {
  std::string cache_path;  // of the probe; empty: nothing is kept
  bool refresh = false;
  std::int64_t unix_s = 0;               // now
  std::int64_t disturbed_max_age_s = 0;  // of what is measured: speeds_cache.h
  DescribedMachine machine;
  bool with_what_ifs = false;
  aio::FileSystem* files = nullptr;  // reports what NVMe paths have free; null: this machine's
  FileSystemOf file_system_of = device_number_of;
  std::function<void(const std::string& what, double fraction)> on_progress;
  offload::RankGroup ranks;
  // As measured between these ranks; unset: as described, or else assumed (described_machine.h).
  std::optional<MeasuredLink> link;
  bool with_growth = false;
  const DescribedModel* described = nullptr;  // in place of the configuration's model
  const ParameterNames* names = nullptr;      // RunSpec::names
  TakenBeside beside = {};
  bool holds_first = false;  // ModelLayout::hold() of the first unit
};

// What the configuration gives, with what is described in its place.
config::Budget planned_budget(config::Budget budget, const DescribedMachine& machine);

// Of the GPU's budget, left to the allocator: its rounding, and the holes between blocks.
inline constexpr double kGpuSlack = 0.015;

// A row of rank_growth.h.
struct RankGrowth {
  offload::RankGroup ranks;
  bool fits = false;  // else there is nothing more
  double step_s = 0;
  double tokens_per_s = 0;     // of all ranks
  double share_of_linear = 0;  // of what the fewest ranks that fit do, each
  double link_exposed_s = 0;   // the link is busy, and nothing computes
  offload::Resource bottleneck = offload::Resource::kGpu;
};

struct RunPlan {
  MemoryPlan memory;  // where nothing fits: of what exceeds the budgets least
  offload::PlannerInput input;
  offload::PlacementPlan placement;  // .fits, .prediction, .hints
  std::vector<offload::WhatIf> what_if;
  ProbeReport machine;
  MachineFacts facts;
  offload::TierBytes available;  // what GPU and host have, whatever the budget; 0: unknown
  offload::TierBytes budget;     // all of it: input.budget is without what is taken beside
  TakenBeside beside;
  NvmeStripes stripes;
  std::uint64_t parameters = 0;  // of the model
  std::uint64_t trained = 0;     // of them; or of the adapters beside them, which are no part of it
  bool trains_adapters = false;
  std::int64_t tokens_per_step = 0;  // of all ranks
  offload::RankGroup ranks;
  std::vector<RankGrowth> growth;  // of several ranks; empty: not asked for
  double drive_tbw = 0;            // of the run's drives; 0: nothing is written to any
  bool drive_tbw_assumed = false;  // as common drives of that size have
};

// How long the run will be, and what it writes; nothing where its steps are not known.
struct RunOutlook {
  std::int64_t steps = 0;
  double hours = 0;
  double written_tb = 0;  // to the drives
  double drive_life = 0;  // the share of their rated life that this is
};
std::optional<RunOutlook> run_outlook(const config::Config& config, const RunPlan& plan);

Result<RunPlan> plan_run(const config::Config& config, const PlanRunOptions& options);

}  // namespace sluice::engine
