// The work of `sluice train` after all checks have passed: the steps, the files written after the
// last step, and the messages about a run that broke off.
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
  const RunningTraining& started;
  const Interrupt& interrupt;
  RunEvents& events;
  Monitors& monitors;
  OutputForm& form;
  std::string again;  // the command that starts the run again from the same point
  int signal_exit_code = kSavedExitCode;
};

// Returns the exit code. Errors, including exceptions, name the drives of the run's state and say
// where the run can continue.
Result<int> train_and_finish(const TrainWork& work);

}  // namespace sluice::tools
