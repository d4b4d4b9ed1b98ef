// What `sluice train` says before the first step: the length of the run, the end of its schedule
// and, for a resumed run, what has changed since the checkpoint.
#pragma once

#include <iosfwd>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/session/resume_point.h"

namespace sluice::tools {

// Writes to `says` a line for each changed key that affects results, and one line for all keys of
// the schedule. No such line if the checkpoint was imported. kInvalidArgument if the rest of the
// schedule would change no weight.
Status report_changes(const config::Resolved& resolved, const ResumePoint& from,
                      std::ostream& says);

}  // namespace sluice::tools
