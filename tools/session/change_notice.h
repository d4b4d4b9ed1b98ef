// What `sluice train` says before the first step about how long the run is and where its schedule
// ends and, for a resumed run, about what has changed since the checkpoint.
#pragma once

#include <iosfwd>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "tools/session/resume_point.h"

namespace sluice::tools {

// To `says`: a line for each key that affects results and has changed, and one for all
// those of the schedule; nothing where the checkpoint was imported. kInvalidArgument where what is
// left of the schedule would move no weight.
Status report_changes(const config::Resolved& resolved, const ResumePoint& from,
                      std::ostream& says);

}  // namespace sluice::tools
