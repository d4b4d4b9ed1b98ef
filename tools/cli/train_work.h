// The work of `sluice train`, once all possible refusals are behind it: the steps, what is written
// after the last of them, and what is said about a run that broke off.
#pragma once

#include <optional>
#include <string>

#include "aio/result.h"
#include "engine/observe/trace_log.h"
#include "engine/run/training_run.h"
#include "engine/weights/dtype.h"
#include "tools/cli/monitors.h"
#include "tools/cli/output_form.h"
#include "tools/cli/run_events.h"
#include "tools/cli/run_folder.h"
#include "tools/cli/run_setup.h"
#include "tools/cli/train_session.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {

struct TrainWork {
  TrainSession& session;
  const Interrupt& interrupt;
  const RunFolder& folder;
  engine::TrainingRun& run;
  RunEvents& events;
  Monitors& monitors;
  OutputForm& form;
  std::optional<engine::TraceLog::Options> trace;  // DIR/trace.json is written
  std::string weights;                             // the file of the final weights; empty: none
  engine::DType weight_dtype = engine::DType::kF32;
  const PlannedStep* planned = nullptr;  // what the steps are compared with
  std::string again;                     // the command that begins again where the run began
};

// Returns the exit code. Errors, including those thrown, say on which drives the run's state was
// and where it can continue.
Result<int> train_and_finish(const TrainWork& work);

}  // namespace sluice::tools
