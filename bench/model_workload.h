// ModelWorkload: measures time and memory of passes of one block of each kind, the head and the
// embedding, with random parameters and inputs.
//
// Memory:  these units' parameters and fp32 gradients, and one pass' activations.
// Threads: one.
// Errors:  throws c10::Error from LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "bench/model_options.h"

namespace sluice::bench {

struct PassMeasurement {
  std::string name;               // "block backward"
  std::vector<double> ms;         // one value per run, on the device's own clock
  double flops = 0;               // per call; 0: negligible
  std::uint64_t peak_bytes;       // activations, including inputs; 0: not measured (CPU)
  std::uint64_t bound_bytes = 0;  // UnitKind::peak_bytes(); 0: unknown

  double median_ms() const;
};

// Checks that this build and machine have the device that the options name.
Status check_device(const ModelBenchOptions& options);

std::vector<PassMeasurement> measure_passes(const ModelBenchOptions& options);

// The output of model_bench: a table for people, JSON for programs.
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
