// The work of `sluice train`, once all possible refusals are behind it: the steps, what is written
// after the last of them, and what is said about a run that broke off.
#pragma once

#include <string>

#include "aio/result.h"
#include "tools/cli/monitors.h"
#include "tools/cli/output_form.h"
#include "tools/session/run_events.h"
#include "tools/session/train_start.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {

struct TrainWork {
  const StartedRun& started;
  const Interrupt& interrupt;
  RunEvents& events;
  Monitors& monitors;
  OutputForm& form;
  std::string again;  // the command that begins again where the run began
  int signal_exit_code = kSavedExitCode;
};

// Returns the exit code. Errors, including those thrown, say on which drives the run's state was
// and where it can continue.
Result<int> train_and_finish(const TrainWork& work);

}  // namespace sluice::tools
