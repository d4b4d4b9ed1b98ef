// take_folder: the run's folder becomes that of a new life of the run, once nothing can be refused
// any longer: what the new life replaces or leaves behind is moved away or, with --overwrite,
// removed.
//
// What takes room on the disk is written before checkpoints and metrics are moved: a full disk
// refuses the run and leaves them as they were. With --overwrite only config.json is, since what is
// removed makes room for the rest.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "engine/exchange/tokenizer_files.h"
#include "engine/observe/metrics_log.h"
#include "tools/session/resume_point.h"
#include "tools/session/run_folder.h"

namespace sluice::tools {

struct NewLife {
  RunFolder::Entry entry = RunFolder::Entry::kNew;
  const ResumePoint& from;
  const config::Resolved& resolved;
  const engine::TokenizerFiles& tokenizer;
  std::ostream& says;  // what was set aside
};

// Also puts config.json and the tokenizer there. The log continues after the last step done.
Result<std::unique_ptr<engine::MetricsLog>> take_folder(const RunFolder& folder,
                                                        const NewLife& life);

}  // namespace sluice::tools
