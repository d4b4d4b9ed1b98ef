// take_folder: prepares the run's folder for a new life of the run, once nothing can be refused any
// longer. What the new life replaces or does not continue is moved away or, with --overwrite,
// removed.
//
// Files that need disk space are written before checkpoints and metrics are moved, so that a full
// disk refuses the run and leaves them unchanged. With --overwrite this holds for config.json only,
// since removing the old run makes room for the rest.
#pragma once

#include <iosfwd>
#include <memory>

#include "aio/result.h"
#include "engine/observe/metrics_log.h"

namespace sluice::tools {

struct LocatedRun;

// Also writes config.json and the tokenizer, and writes to `says` what was set aside. The returned
// log continues after the last completed step.
Result<std::unique_ptr<engine::MetricsLog>> take_folder(const LocatedRun& located,
                                                        std::ostream& says);

}  // namespace sluice::tools
