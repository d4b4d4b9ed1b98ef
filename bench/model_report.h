// The output of model_bench: a table for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "bench/model_options.h"
#include "bench/model_workload.h"

namespace sluice::bench {

struct ModelReport {
  ModelBenchOptions options;
  std::vector<PassMeasurement> passes;

  std::string table() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;

 private:
  struct Whole {
    std::string name;
    double ms = 0;
    double flops = 0;
  };
  // Forward and backward of a micro-batch through all units: activations saved, or recomputed.
  std::vector<Whole> wholes() const;
  const PassMeasurement& pass(const std::string& name) const;
};

}  // namespace sluice::bench
