// The results of checkpoint_bench: rows, a summary and JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "bench/aio_workload.h"
#include "bench/checkpoint_options.h"
#include "bench/checkpoint_workload.h"

namespace sluice::bench {

struct CheckpointRound {
  CheckpointPass save;
  CheckpointPass load;
  RunResult write;  // measured by aio
  RunResult read;
};

struct CheckpointReport {
  CheckpointBenchOptions options;
  std::string backend;
  std::uint64_t staging_bytes = 0;        // for a save, and for a load
  std::uint64_t peak_resident_bytes = 0;  // this process; 0: unknown
  bool interrupted = false;
  std::vector<CheckpointRound> rounds;

  std::string shape_text() const;
  static std::string table_heading();
  static std::string row(const CheckpointRound& round, std::size_t number);
  std::string summary() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;
};

}  // namespace sluice::bench
