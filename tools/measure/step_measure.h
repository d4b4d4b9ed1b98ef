// Measures the steps of a training run that is ready.
//
// All updates and writes of the warm-up end before the first byte is counted. One more step then
// restores the overlap of an update with the next forward, so that every measured step costs what a
// step costs in the long run. That step's bytes count, its time does not.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/run/training_run.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {

struct StepPlan {
  int warmup = 1;
  int steps = 1;
  double seconds = 0;  // 0: no limit
};

struct MeasuredStep {
  double seconds = 0;
  double loss = 0;
  bool skipped = false;
  engine::StepTimes times;
};

// Memory use of this process and of the machine.
struct MemoryUse {
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_resident_bytes = 0;
  std::uint64_t pinned_bytes = 0;     // as counted by the kernel
  std::uint64_t available_bytes = 0;  // on the machine, for any process
  std::uint64_t gpu_used_bytes = 0;   // on the device, by all processes; 0 without a device
};
// On a GPU (`cuda`), creates the context first.
MemoryUse memory_use(bool cuda);

struct StepMeasurement {
  std::vector<double> warmup_seconds;
  std::vector<MeasuredStep> steps;
  bool interrupted = false;
  // Over `moved_steps` steps, including all of their updates and writes.
  engine::TrainingRun::Traffic moved;
  int moved_steps = 0;
  double drain_seconds = 0;  // time of the work left after the last step
  MemoryUse memory;          // after the last step
  std::uint64_t gpu_peak_bytes = 0;
  std::uint64_t gpu_pinned_bytes = 0;
};

using OnStep = std::function<void(std::string_view phase, int done, int total, double seconds)>;
// Throws like Trainer.
StepMeasurement measure_steps(engine::TrainingRun& run, const StepPlan& plan,
                              const Interrupt& interrupt, const OnStep& on_step);

}  // namespace sluice::tools
