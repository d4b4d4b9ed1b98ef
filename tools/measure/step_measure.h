// Measures the steps of a training run that is ready.
//
// Warm-up, including all of its updates and writes, ends before the first byte is counted. One more
// step then fills the overlap of an update with the next forward again, so that every measured step
// costs what a step costs in the long run; its bytes count, its time does not.
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

// What the process takes of the machine.
struct MemoryUse {
  std::uint64_t resident_bytes = 0;
  std::uint64_t peak_resident_bytes = 0;
  std::uint64_t pinned_bytes = 0;     // as the kernel counts them
  std::uint64_t available_bytes = 0;  // of the machine, to anyone
  std::uint64_t gpu_used_bytes = 0;   // of the device, by anyone; 0 without one
};
// On a GPU (`cuda`), makes its context first.
MemoryUse memory_use(bool cuda);

struct StepMeasurement {
  std::vector<double> warmup_seconds;
  std::vector<MeasuredStep> steps;
  bool interrupted = false;
  // Over `moved_steps` steps, all of their updates and writes included.
  engine::TrainingRun::Traffic moved;
  int moved_steps = 0;
  double drain_seconds = 0;  // what was left to do after the last step
  MemoryUse memory;          // after the last step
  std::uint64_t gpu_peak_bytes = 0;
  std::uint64_t gpu_pinned_bytes = 0;
};

using OnStep = std::function<void(std::string_view phase, int done, int total, double seconds)>;
// Throws as Trainer does.
StepMeasurement measure_steps(engine::TrainingRun& run, const StepPlan& plan,
                              const Interrupt& interrupt, const OnStep& on_step);

}  // namespace sluice::tools
