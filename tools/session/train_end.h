// What happens after a run's last step, or after a step has failed.
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

// Writes the files requested for the end of a run, trace and weights, even if not all steps were
// taken. Each file that cannot be written adds a sentence to `missing`; the others are still
// written.
struct TrainOutputs {
  std::ostream& notes;
  std::ostream& results;  // gets the files' names
};
void write_last_files(const RunningTraining& started, const TrainOutputs& after,
                      std::vector<std::string>& missing);

// Calls `steps`. An error or exception names the drives of the run's state and says where the run
// can continue; it is returned after pending checkpoints have been written.
Status say_where_it_continues(const RunningTraining& started, const std::function<Status()>& steps);

// For a run whose steps changed nothing.
inline constexpr const char* kNothingApplied =
    "no step was applied and the weights are unchanged, because every gradient overflowed. Lower "
    "the loss scale (fp16.initial_scale_power, fp16.loss_scale) or train in bf16";

}  // namespace sluice::tools
