// StepModel: when each part of a training step runs, for a placement and a machine's speeds: the
// schedule of ARCHITECTURE.md's "way of a step" over its resources, in virtual time. What the
// planner minimises, `sluice plan` prints and `--simulate` draws.
//
// It models two steps in a row, because the update of one runs under the forward of the next, and
// takes the time from one end of backward to the next: what a step costs in the long run.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/machine_speeds.h"

namespace sluice::offload {

// What happens to the activations of a unit between forward and backward.
enum class ActivationPlace : std::uint8_t {
  kKeep,       // all that backward needs stays on the GPU
  kRecompute,  // the unit's input stays on the GPU, the rest is computed again
  kOffload,    // likewise, and the input goes to pinned RAM and back
};

// One unit of the model, over all micro-batches of a step.
struct UnitCost {
  std::string name;
  std::uint64_t elements = 0;
  double forward_s = 0;  // of the GPU
  double recompute_s = 0;
  double backward_s = 0;             // without recomputing; the cast of the gradient included
  std::uint64_t boundary_bytes = 0;  // its input
  std::uint64_t kept_bytes = 0;      // what kKeep keeps beside the input
};

// Where a unit's state lies. Elements of gpu, cpu and nvme state add up to the unit's.
struct UnitPlace {
  std::uint64_t gpu_elements = 0;
  std::uint64_t cpu_elements = 0;
  std::uint64_t nvme_elements = 0;
  bool resident = false;        // its parameters have a place of their own on the GPU
  bool params_on_nvme = false;  // the host's copy; never with `resident` and all state on the GPU
  ActivationPlace activations = ActivationPlace::kRecompute;
};

struct StepBytes {        // a parameter's, by what the numbers are
  double param = 2;       // on the bus and, if so placed, on the drives
  double grad = 2;        // on the bus
  double nvme_read = 10;  // state of an element on the drives
  double nvme_write = 10;
};

struct StepModelOptions {
  bool overlap_update = true;
  int prefetch_units = 2;
  StepBytes bytes;
};

enum class Resource : std::uint8_t { kGpu, kHostToGpu, kGpuToHost, kCpu, kDriveRead, kDriveWrite };
inline constexpr int kResources = 6;
const char* to_string(Resource resource);

struct StepSpan {
  Resource resource = Resource::kGpu;
  std::string what;  // "forward h3", "adamw h3", ...
  double begin_s = 0;
  double end_s = 0;
};

struct StepPrediction {
  double step_s = 0;
  double busy_s[kResources] = {};        // NOLINT(modernize-avoid-c-arrays)
  Resource bottleneck = Resource::kGpu;  // the one that is busy for the largest share of the step
  double forward_s = 0;                  // from the step's begin to the end of the head
  double update_exposed_s = 0;           // what forward waits for updates
  double nvme_read_bytes = 0;
  double nvme_write_bytes = 0;
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  std::vector<StepSpan> spans;  // of one whole step; only when asked for
};

// `units` in forward order: embedding, blocks, head. As many places.
StepPrediction predict_step(const std::vector<UnitCost>& units,
                            const std::vector<UnitPlace>& places, const MachineSpeeds& speeds,
                            const StepModelOptions& options, bool with_spans = false);

}  // namespace sluice::offload
