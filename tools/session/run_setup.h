// From a configuration to a run that is ready: plan, preflight (printed), memory, weights.
//
// Ownership: each stage returns a value, which keeps nothing of what it was given but the link.
// Threads: one.
// Errors:  values. kCancelled: it was told to stop, or another rank has failed.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

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
#include "tools/session/tier_use.h"

namespace sluice::tools {

// What the planner predicted, and what that was made of.
struct PlannedStep {
  double step_s = 0;
  engine::ProbeReport machine;
  std::string prediction;  // engine::prediction_json()
  std::string what_if;     // engine::what_if_json(), where it was asked for
};

// What a run finds and leaves in its folder besides what the configuration says.
struct RunFiles {
  std::int64_t complete_checkpoints = 0;  // there already
  std::string weights;                    // the file of its final weights; empty: none
  engine::DType weight_dtype = engine::DType::kF32;
};

struct SetUpOptions {
  RunFiles files = {};
  bool with_what_ifs = false;            // takes as long as some plans more
  bool of_a_series = false;              // plan_here.h
  std::function<bool()> stop = {};       // whether to end it early, with kCancelled
  std::ostream* says = &std::cerr;       // what it is about to do, and the preflight table
  engine::Communicator* link = nullptr;  // between several ranks; null: there is one
};

// What a run will take and when it saves: known, and said, before it takes anything.
struct PlannedRun {
  engine::MemoryPlan memory;
  TierRooms rooms = {};
  std::optional<PlannedStep> step = {};  // nothing: the planner was not asked
  engine::SavePlan saves = {};           // of a run that trains
};

// A run that has its memory and files, and no state yet.
struct MadeRun {
  std::unique_ptr<engine::TrainingRun> run;
  std::int64_t took_ns = 0;
};

// A run's set-up in three stages. `from`: the checkpoint that it continues from; none: it begins.
// An error of the last one is of the state, so where there is a checkpoint, of that.
Result<PlannedRun> plan_training(const config::Config& config,
                                 const std::optional<engine::CheckpointEntry>& from,
                                 const SetUpOptions& options = {});
Result<MadeRun> make_run(const config::Config& config, const PlannedRun& planned,
                         const SetUpOptions& options = {});
Result<std::unique_ptr<engine::TrainingRun>> give_state(
    MadeRun made, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options = {});

// All three.
Result<std::unique_ptr<engine::TrainingRun>> set_up_run(
    const config::Config& config, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options = {});

// These, too, print the preflight table and progress, on standard error.
// `checkpoint`: the folder of the one whose weights are used; empty: what the configuration names.
Result<std::unique_ptr<engine::EvaluationRun>> set_up_evaluation(const config::Config& config,
                                                                 const std::string& checkpoint);
// `checkpoint`: the folder of the one whose weights are used.
Result<std::unique_ptr<engine::GenerationRun>> set_up_generation(const config::Config& config,
                                                                 const std::string& checkpoint);

}  // namespace sluice::tools
