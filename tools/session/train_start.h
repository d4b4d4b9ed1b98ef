// From a request to a run whose next call is its first step, as a chain of values, each made from
// the previous one:
//
// - TrainRequest   what is asked for
// - CheckedRequest      check_training(): valid, except for conflicts with the run's folder
// - LocatedRun     locate_training(): its folder, where it continues, its final configuration
// - RunningTraining     begin_training(): its plan (run_setup.h), memory, state; it owns the folder
//
// `sluice train` handles Ctrl-C once it has the second, and the first of several ranks sends the
// third to the others.
//
// Ownership: each value owns its contents, including the value it was made from. The objects that
//            TrainEnvironment refers to must outlive the run.
// Threads:   one.
// Errors:    the user's mistakes and errors of drives and files, as one sentence. kCancelled: it
//            was asked to stop before its first step, and nothing was changed.
#pragma once

#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rank_context.h"
#include "engine/exchange/tokenizer_files.h"
#include "engine/observe/metrics_log.h"
#include "engine/observe/trace_log.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/training_run.h"
#include "engine/weights/dtype.h"
#include "tools/session/config_options.h"
#include "tools/session/resume_point.h"
#include "tools/session/run_events.h"
#include "tools/session/run_folder.h"
#include "tools/session/run_setup.h"
#include "tools/session/train_session.h"

namespace sluice::tools {

struct TrainRequest {
  ConfigOptions config;  // the members below are other names for some keys, and win
  std::string out;
  std::string steps;  // unparsed: the keys' own checks apply
  std::string epochs;
  std::string log_every;
  bool overwrite = false;
  std::string resume;
  bool set_aside_later = false;
  std::string trace;  // FIRST:LAST
  std::string save_weights;
  std::string dtype = "fp32";
  bool force = false;
  std::string init_from;
  bool any_tokenizer = false;
  int gpus = 0;  // as requested; 0: not given
};

struct CheckedRequest {
  TrainRequest request;
  config::Resolved resolved;
  RunFolder::Entry entry = RunFolder::Entry::kNew;
  engine::DType weight_dtype = engine::DType::kF32;
  std::optional<engine::TraceLog::Options> trace;
  engine::TokenizerFiles tokenizer;
};
Result<CheckedRequest> check_training(const TrainRequest& request,
                                      const engine::RankContext& context,
                                      aio::IoWatchdog& watchdog);

struct TrainEnvironment {
  engine::RankContext context;
  engine::Communicator& link = engine::single_process();
  aio::IoWatchdog& watchdog;
  TrainSession::Stop stop;
  ResumeCommand command;              // for messages that say how to continue
  std::ostream& notices;              // for progress messages
  std::ostream& results = std::cout;  // for requested results: the profile of a step
  RunEvents& events;                  // receives the warnings of check_training()
  bool shows_progress = true;
  std::function<void(const engine::StepMetrics&)> after_step = {};
  MakeSamples make_samples = {};  // for samples.prompts, which is refused without it
};

// Final: nothing in it changes any more.
struct LocatedRun {
  CheckedRequest wanted;  // with what it keeps of the run that it continues
  RunFolder folder;
  ResumePoint from;
};
Result<std::unique_ptr<const LocatedRun>> locate_training(CheckedRequest wanted,
                                                          const TrainEnvironment& environment);

// Later members refer to those before them.
struct RunningTraining {
  std::unique_ptr<const LocatedRun> located;
  PlannedRun planned;
  std::unique_ptr<engine::TrainingRun> run;
  std::unique_ptr<engine::RunCheckpoints> checkpoints;  // null: none are wanted
  std::unique_ptr<engine::MetricsLog> log;
  std::unique_ptr<TrainSession> session;
};
Result<RunningTraining> begin_training(std::unique_ptr<const LocatedRun> located,
                                       const TrainEnvironment& environment);

}  // namespace sluice::tools
