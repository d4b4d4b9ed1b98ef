// ModelWorkload: one block of each kind, the head and the embedding of a model with random
// parameters and inputs, and the time and memory of their passes.
//
// Memory:  these units' parameters and fp32 gradients, and one pass' activations.
// Threads: one.
// Errors:  c10::Error, as LibTorch throws it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/model_options.h"

namespace sluice::bench {

struct PassMeasurement {
  std::string name;               // "block backward"
  std::vector<double> ms;         // of each run, on the device's own clock
  double flops = 0;               // of one call; 0: negligible
  std::uint64_t peak_bytes;       // of activations, inputs included; 0: not counted (CPU)
  std::uint64_t bound_bytes = 0;  // UnitKind::peak_bytes(); 0: not said

  double median_ms() const;
};

// Whether this build and machine have the device that the options ask for; otherwise a sentence.
Status check_device(const ModelBenchOptions& options);

std::vector<PassMeasurement> measure_passes(const ModelBenchOptions& options);

}  // namespace sluice::bench
