// From a configuration to a run that is ready: plan, preflight (printed), memory, weights.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
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
  offload::StepPrediction predicted;
  std::string prediction;  // engine::prediction_json()
  std::string what_if;     // engine::what_if_json(), where it was asked for
  std::string what_if_text;
};

// What a run finds and leaves in its folder besides what the configuration says.
struct RunFiles {
  std::int64_t complete_checkpoints = 0;  // there already
  std::string weights;                    // the file of its final weights; empty: none
  engine::DType weight_dtype = engine::DType::kF32;
};

struct SetUpOptions {
  RunFiles files;
  std::optional<PlannedStep>* planned = nullptr;  // gets nothing where the planner was not asked
  bool with_what_ifs = false;                     // takes as long as some plans more
  std::vector<TierUse>* tiers = nullptr;
  engine::SavePlan* saves = nullptr;     // gets when a training run saves
  bool of_a_series = false;              // plan_here.h
  std::function<bool()> stop = {};       // whether to end it early, with kCancelled
  std::ostream* says = &std::cerr;       // what it is about to do, and the preflight table
  bool* reads_checkpoint = nullptr;      // becomes true before the checkpoint is read
  engine::Communicator* link = nullptr;  // between several ranks; null: there is one
  bool* has_begun = nullptr;             // becomes true once all ranks begin
};

// All print the preflight table and progress, on standard error unless options.says is another.
// `from`: the checkpoint that the run continues from; none: it begins.
Result<std::unique_ptr<engine::TrainingRun>> set_up_run(
    const config::Config& config, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options = {});
// `checkpoint`: the folder of the one whose weights are used; empty: what the configuration names.
Result<std::unique_ptr<engine::EvaluationRun>> set_up_evaluation(const config::Config& config,
                                                                 const std::string& checkpoint);
// `checkpoint`: the folder of the one whose weights are used.
Result<std::unique_ptr<engine::GenerationRun>> set_up_generation(const config::Config& config,
                                                                 const std::string& checkpoint);

}  // namespace sluice::tools
