// What is done and said once a run's last step is done, or one has failed.
//
// Threads: one. Errors: values.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/session/train_start.h"

namespace sluice::tools {

// What is wanted after the last step, whether all of them were taken: trace and weights, as the
// request has it. One file that cannot be written does not cost another: `missing` gets a sentence
// for each.
struct AfterTraining {
  std::ostream& notes;
  std::ostream& results;  // the files
};
void write_last_files(const StartedRun& started, const AfterTraining& after,
                      std::vector<std::string>& missing);

// Calls what takes steps; an error, also one that is thrown, says on which drives the run's state
// was and where it can continue. Waits for checkpoints that are being written, then.
Status say_where_it_continues(const StartedRun& started, const std::function<Status()>& steps);

// Of a run whose steps changed nothing.
inline constexpr const char* kNothingApplied =
    "no step was applied, so the weights are those that the run began with: every gradient "
    "overflowed. Lower the loss scale (fp16.initial_scale_power, fp16.loss_scale) or train in bf16";

}  // namespace sluice::tools
