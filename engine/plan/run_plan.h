// RunPlan: the memory that a training run of a configuration needs on a machine, and its step time.
// It has the planner's placement for everything that the configuration leaves open, the memory plan
// that follows, and the predicted step.
//
// With several ranks it is the first rank's plan, and so every rank's. Each rank has an equal part
// of a unit, of its host's memory, drives and cores, and its own GPU.
//
// The machine is this one, measured by the probe (seconds the first time, then from a file), or a
// described one; then nothing is measured.
//
// Threads: one.
// Errors:  those of the configuration and of the probe. A run that does not fit is not an error.
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
#include "engine/preflight/machine_facts.h"
#include "engine/preflight/shared_file_systems.h"
#include "engine/probe/probe_report.h"
#include "offload/planner/placement_planner.h"

namespace sluice::engine {

// NvmeStripes: how a planned run's stores are distributed over its NVMe paths, and the available
// space on each.
//
// Under placement.nvme_weights "auto" the weights follow the measured speeds. If the run then does
// not fit on some path, that path's weight is lowered: a slower run is better than none.
//
// The two paths of DeepSpeed's keys, one for each store, are not striped, so neither path needs
// room for the other's store.
struct NvmeStripes {
  std::vector<std::string> paths;         // of all stores
  bool striped = false;                   // each store is on all of several budget.nvme_paths
  std::vector<int> weights;               // by path; 1 if paths are not striped
  std::vector<std::uint64_t> room_bytes;  // by path, less a margin; empty: not on this machine
  std::vector<int> weights_before;        // set if they were changed for lack of room
  bool slower_together = false;           // measured: slower than with weights_before

  // The room on all paths; only if they are on this machine. If they are not striped, a store may
  // find less on its own path.
  std::uint64_t room() const;
  // The value for PlanOptions::nvme_weights.
  std::vector<int> chosen() const { return striped ? weights : std::vector<int>(); }
};

// `files` reports the free space; null: the drives are not on this machine.
NvmeStripes nvme_stripes(const config::Config& config, const ProbeReport& machine,
                         aio::FileSystem* files,
                         const FileSystemOf& file_system_of = device_number_of);

// The free space that a drive needs so that a plan assumes this much room.
std::uint64_t free_for_room(std::uint64_t room_bytes);

// Weights with which this many bytes fit; nullopt if none do, or if the bytes already fit.
std::optional<std::vector<int>> roomier_weights(const NvmeStripes& stripes,
                                                std::uint64_t needed_bytes);

// Whether the plan may choose the weights.
bool may_restripe(const config::Config& config, const NvmeStripes& stripes);
// Sets other weights, and in `machine` the resulting rates of all paths together, estimated from
// the measured rates. Without measured paths the rates stay.
void restripe(NvmeStripes& stripes, std::vector<int> weights, ProbeReport& machine);

// A sentence that says that weights were changed, and why; or empty.
std::string restriped_text(const NvmeStripes& stripes);

struct GpuSheet;
struct PlanSubject;

// A machine that may differ from this one, by data sheets (gpu_sheets.h). Unset values are this
// machine's. A GPU's unset values are its data sheet's, or else assumed (described_machine.h).
struct DescribedMachine {
  const GpuSheet* gpu = nullptr;
  std::optional<double> gpu_gib;
  std::optional<double> cpu_gib;
  std::optional<double> nvme_gib;
  std::optional<double> bus_gb_per_s;         // each way
  std::optional<double> tflops;               // dense, in the run's type, sums in fp32
  std::optional<double> gpu_memory_gb_per_s;  // read plus written
  std::optional<double> ram_gb_per_s;         // read plus written
  std::optional<double> drive_read_gb_per_s;
  std::optional<double> drive_write_gb_per_s;
  // For several ranks: the rate between ranks of a host, per rank and direction; the rate between
  // hosts, per host and direction; and the latency of a call.
  std::optional<double> link_gb_per_s;
  std::optional<double> network_gb_per_s;
  std::optional<double> link_latency_us;
  std::optional<double> drive_tbw;  // rated endurance of all drives together
  // The machine has nothing of this one: values that neither it nor a budget gives are assumed, and
  // no folder is accessed.
  bool is_elsewhere = false;

  bool describes_host() const { return ram_gb_per_s.has_value(); }
  bool describes_drives() const { return drive_read_gb_per_s || drive_write_gb_per_s; }
  bool describes_link() const { return link_gb_per_s || network_gb_per_s || link_latency_us; }
  bool describes_gpu() const {
    return gpu != nullptr || gpu_gib || bus_gb_per_s || tflops || gpu_memory_gb_per_s;
  }
  // Uses the data sheet's value if gpu_gib is unset.
  double gpu_memory_gib() const;
};

// A model without a built-in family, whose passes run outside of the engine (engine/module). Its
// units are not timed: their times are estimated from operations. A wave is one micro-batch.
struct DescribedModel {
  const ModelLayout& layout;
};

// Memory that a run needs in addition to its plan; the plan's budget is smaller by it.
struct OutsideMemory {
  offload::TierBytes bytes;
  offload::TierBytes at_most;  // with unlimited budgets
};

struct PlanRunOptions {
  std::string cache_path;  // of the probe; empty: no cache
  bool refresh = false;
  std::int64_t unix_s = 0;               // the current time
  std::int64_t disturbed_max_age_s = 0;  // of measurements: see speeds_cache.h
  DescribedMachine machine;
  bool with_what_ifs = false;
  aio::FileSystem* files = nullptr;  // reports the paths' free space; null: this machine's
  FileSystemOf file_system_of = device_number_of;
  std::function<void(const std::string& what, double fraction)> on_progress;
  offload::Topology ranks;
  // Measured between these ranks; unset: described, or else assumed (described_machine.h).
  std::optional<MeasuredLink> link;
  bool with_growth = false;
  bool with_longest_sequence = false;         // not for a DescribedModel
  const DescribedModel* described = nullptr;  // used instead of the configuration's model
  const ParameterNames* names = nullptr;      // RunSpec::names
  OutsideMemory outside = {};
  bool first_stays_acquired = false;  // ModelLayout::keep_acquired() of the first unit
};

// The configured budget, with described values in its place.
config::Budget planned_budget(config::Budget budget, const DescribedMachine& machine);

// Fraction of the GPU's budget left to the allocator, for rounding and holes between blocks.
inline constexpr double kGpuSlack = 0.015;

// A row of rank_growth().
struct RankGrowth {
  offload::Topology ranks;
  bool fits = false;  // if false, the rest is unset
  double step_s = 0;
  double tokens_per_s = 0;     // of all ranks
  double share_of_linear = 0;  // per rank, relative to the fewest ranks that fit
  double link_exposed_s = 0;   // the link is busy, and nothing computes
  offload::Resource bottleneck = offload::Resource::kGpu;
};

struct RunPlan {
  MemoryPlan memory;  // if nothing fits: the plan that exceeds the budgets least
  offload::PlannerInput input;
  offload::PlacementPlan placement;
  std::vector<offload::FitHint> hints;  // empty: the run fits
  std::vector<offload::WhatIf> what_if;
  ProbeReport machine;
  MachineFacts facts;
  offload::TierBytes available;  // of GPU and host, regardless of the budget; 0: unknown
  offload::TierBytes budget;     // input.budget plus the bytes in `outside`
  OutsideMemory outside;
  NvmeStripes stripes;
  std::uint64_t parameters = 0;  // of the model
  std::uint64_t active = 0;      // of these: ModelLayout::active_elements()
  std::uint64_t trained = 0;     // of these; or of the adapters, which are not included
  bool trains_adapters = false;
  std::int64_t tokens_per_step = 0;  // of all ranks
  offload::Topology ranks;
  std::vector<RankGrowth> growth;  // for several ranks; empty: not requested
  // The least host memory that is enough if everything else is on the drives. Unset: no drive.
  std::optional<std::uint64_t> host_floor_bytes;
  // longest_sequence(), also if this run does not fit. Unset: not requested.
  std::optional<std::int64_t> longest_sequence;
  double drive_tbw = 0;            // of the run's drives; 0: nothing is written to them
  bool drive_tbw_assumed = false;  // that of common drives of this size
};

// The duration of the run and the bytes that it writes; nullopt if its number of steps is unknown.
struct RunOutlook {
  std::int64_t steps = 0;
  double hours = 0;
  double written_tb = 0;  // to the drives
  double drive_life = 0;  // fraction of the rated endurance
};
std::optional<RunOutlook> run_outlook(const config::Config& config, const RunPlan& plan);

Result<RunPlan> plan_run(const config::Config& config, const PlanRunOptions& options);

// How a planned run scales with its ranks: the same micro-batches per rank on one, two, four, ...
// ranks of a host, and then on two hosts, four, .... Each row is planned anew with its hosts'
// resources. A row takes half a second.

// Groups with fewer ranks, and `all` itself; each host has the same number.
std::vector<offload::Topology> growing_ranks(const offload::Topology& all);

// Requires a plan that fits; it is the last row. Returns the errors of planner_input().
Result<std::vector<RankGrowth>> rank_growth(const PlanSubject& subject, const RunPlan& plan);

}  // namespace sluice::engine
