// From what a command line or a script asks for to a run whose next call is its first step: checks,
// the run's folder, where it continues, plan, memory and state. In two parts, as a command takes
// Ctrl-C between them:
//
//   check_training(request, ...)   refuses what can be refused without the run's folder
//   begin_training(wanted, ...)    opens the folder, which is the run's own once that returns
//
// Threads: one.
// Errors:  the user's mistakes and those of drives and files, as one sentence. kCancelled: it was
//          told to stop before its first step, and nothing was changed.
#pragma once

#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  ConfigOptions config;  // what follows has other names for some keys, which win
  std::string out;
  std::string steps;  // as they are given: the keys' own checks apply
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
  int gpus = 0;  // that were asked for; 0: nothing was said
};

// What is asked for, checked as far as possible without the run's folder.
struct WantedRun {
  config::Resolved resolved;
  RunFolder::Entry entry = RunFolder::Entry::kNew;
  engine::DType weight_dtype = engine::DType::kF32;
  std::optional<engine::TraceLog::Options> trace;
  engine::TokenizerFiles tokenizer;
};
Result<WantedRun> check_training(const TrainRequest& request, const engine::RankContext& context,
                                 aio::IoWatchdog& watchdog);

struct StartedRun;

struct TrainSurroundings {
  engine::RankContext context;
  engine::Communicator* link = nullptr;                         // between several ranks
  std::function<Status(const StartedRun&)> before_set_up = {};  // once it is known what it will be
  aio::IoWatchdog& watchdog;
  TrainSession::Stop stop;
  ResumeCommand command;              // for messages that say how to continue
  std::ostream& says;                 // what the run is about to do, and has done
  std::ostream& results = std::cout;  // what was asked for: the profile of a step
  RunEvents& events;                  // from before check_training() on, whose warnings it hears
  bool shows_progress = true;
  std::function<void(const engine::StepMetrics&)> after_step = {};
};

// Its parts refer to each other, so it stays where it is. `events` of the surroundings goes on
// being used.
struct StartedRun {
  StartedRun(WantedRun asked, RunFolder own_folder)
      : wanted(std::move(asked)), folder(std::move(own_folder)) {}
  StartedRun(const StartedRun&) = delete;
  StartedRun& operator=(const StartedRun&) = delete;

  WantedRun wanted;  // adjusted by what it continues from
  RunFolder folder;
  ResumePoint from;
  PlannedRun planned;
  std::unique_ptr<engine::TrainingRun> run;
  std::unique_ptr<engine::RunCheckpoints> checkpoints;  // null: none are wanted
  std::unique_ptr<engine::MetricsLog> log;
  std::unique_ptr<TrainSession> session;
};
Result<std::unique_ptr<StartedRun>> begin_training(const TrainRequest& request, WantedRun wanted,
                                                   const TrainSurroundings& around);

}  // namespace sluice::tools
