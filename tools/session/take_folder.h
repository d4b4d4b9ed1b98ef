// take_folder: the run's folder becomes that of a new life of the run, once nothing can be refused
// any longer: what the new life replaces or leaves behind is moved away or, with --overwrite,
// removed.
//
// What takes room on the disk is written before checkpoints and metrics are moved: a full disk
// refuses the run and leaves them as they were. With --overwrite only config.json is, since what is
// removed makes room for the rest.
#pragma once

#include <iosfwd>
#include <memory>

#include "aio/result.h"
#include "engine/observe/metrics_log.h"

namespace sluice::tools {

struct LocatedRun;

// Also puts config.json and the tokenizer there, and tells `says` what was set aside. The log
// continues after the last step done.
Result<std::unique_ptr<engine::MetricsLog>> take_folder(const LocatedRun& located,
                                                        std::ostream& says);

}  // namespace sluice::tools
