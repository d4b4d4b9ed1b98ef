// The output of adam_bench: a table for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "aio/page_memory.h"
#include "bench/adam_measure.h"

namespace sluice::bench {

struct AdamReport {
  const AdamBenchOptions& options;
  const std::vector<AdamRun>& runs;
  aio::PageKind page_kind;

  std::string table() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;
};

}  // namespace sluice::bench
