// Sets up a run from its configuration: plan, preflight (printed), memory, weights.
//
// Ownership: each stage returns a value that keeps none of its arguments except the link.
// Threads:   one.
// Errors:    values. kCancelled: it was asked to stop, or another rank has failed.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/budget/save_plan.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/comm/communicator.h"
#include "engine/probe/probe_report.h"
#include "engine/run/evaluation_run.h"
#include "engine/run/generation_run.h"
#include "engine/run/training_run.h"
#include "engine/weights/dtype.h"
#include "tools/session/show_share.h"

namespace sluice::tools {

// TierUsage: what a run takes of each tier, part by part, and its budget there, for reports.
struct TierUsage {
  std::string tier;  // "gpu", "cpu", "nvme"
  std::vector<engine::MemoryLine> lines;
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> budget_bytes;  // unset: unknown
};

// What a run may take of each tier; unset: unknown.
struct TierCapacities {
  std::optional<std::uint64_t> gpu_bytes;
  std::optional<std::uint64_t> host_bytes;
  std::optional<std::uint64_t> nvme_bytes;
};

// One entry for each tier that the plan uses.
std::vector<TierUsage> tiers_of(const engine::MemoryPlan& plan, const TierCapacities& rooms = {});

// The planner's prediction, and the measurements it is based on.
struct PlannedStep {
  double step_s = 0;
  engine::ProbeReport machine;
  std::string prediction;  // engine::prediction_json()
  std::string what_if;     // engine::what_if_json(), if requested
};

// Facts about the run's folder that the configuration does not have.
struct RunFiles {
  std::int64_t complete_checkpoints = 0;  // already in the folder
  std::string weights;                    // file for the final weights; empty: none
  engine::DType weight_dtype = engine::DType::kF32;
};

struct SetUpOptions {
  RunFiles files = {};
  const engine::StoredRecords* adopts = nullptr;  // the store in which the run continues
  bool with_what_ifs = false;                     // takes as long as several more plans
  bool of_a_series = false;                       // plan_here.h
  std::function<bool()> stop = {};                // whether to end early, with kCancelled
  std::ostream* notices = &std::cerr;             // gets progress messages and the preflight table
  engine::Communicator* link = &engine::single_process();
};

// The resources a run will take and when it saves; computed and printed before it takes any.
struct PlannedRun {
  engine::MemoryPlan memory;
  std::string placement = {};  // SharedPlacement; empty: the planner was not used
  TierCapacities rooms = {};
  std::optional<PlannedStep> step = {};  // nullopt: the planner was not used
  engine::SavePlan saves = {};           // for a run that trains
};

// A run that has its memory and files, but no state yet.
struct MadeRun {
  std::unique_ptr<engine::TrainingRun> run;
  std::int64_t took_ns = 0;
};

// Set up a run in three stages. `from`: the checkpoint to continue from; nullopt: a new run. An
// error of give_state() is about the state, and so about that checkpoint if there is one.
Result<PlannedRun> plan_training(const config::Config& config,
                                 const std::optional<engine::CheckpointEntry>& from,
                                 const SetUpOptions& options = {});
Result<MadeRun> make_run(const config::Config& config, const PlannedRun& planned,
                         const SetUpOptions& options = {});
Result<std::unique_ptr<engine::TrainingRun>> give_state(
    MadeRun made, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options = {});

// All three stages.
Result<std::unique_ptr<engine::TrainingRun>> set_up_run(
    const config::Config& config, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options = {});

// These, too, print the preflight table and progress on standard error.
// `checkpoint`: the folder of the checkpoint whose weights are used; empty: the weights that the
// configuration names.
Result<std::unique_ptr<engine::EvaluationRun>> set_up_evaluation(const config::Config& config,
                                                                 const std::string& checkpoint);
// `checkpoint`: the folder of the checkpoint whose weights are used.
Result<std::unique_ptr<engine::GenerationRun>> set_up_generation(const config::Config& config,
                                                                 const std::string& checkpoint);

}  // namespace sluice::tools
