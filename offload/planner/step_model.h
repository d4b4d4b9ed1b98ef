// StepModel: when each part of a training step runs, for a placement and a machine's speeds: the
// step's program (step_program.h) over the machine's resources, in virtual time. What the planner
// minimises and `sluice plan` prints.
//
// A step is taken from one norm to the next: the update of the previous step, under this one's
// forward; the head, which is forward and backward in one; backward; the norm, when all gradients
// are where they belong. Without drives every such period begins with all resources idle, so the
// first is the steady state. With drives, writes and reads extend across the norm, so three are
// simulated and the last one is reported.
//
// Where a step has several waves, costs of a unit that follow from the batch are of all of them,
// and a wave has its share; what is kept between forward and backward is that of one wave. fp32
// sums of gradients come and go between waves for units with state on the host, over the bus where
// there is one.
//
// With several ranks it is the step of one of them, whose shards (unit_shards.h) are what state,
// AdamW, host copies and drives move, while a unit passes whole: it is gathered before a pass where
// it is not there, once in each wave and again for backward, and the last wave's sums are reduced.
// Calls of a few bytes, such as those for the norm, are left out.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "offload/planner/machine_speeds.h"
#include "offload/step_program.h"
#include "offload/sum_order.h"

namespace sluice::offload {

// What happens to the activations of a unit between forward and backward.
enum class ActivationPlace : std::uint8_t {
  kKeep,       // everything that backward needs stays on the GPU
  kRecompute,  // the unit's input stays on the GPU, the rest is computed again
  kOffload,    // likewise, and the input goes to pinned RAM and back
  kSpill,      // likewise, through buffers there to the drives and back
};

// Whether a unit's input is elsewhere between its passes.
constexpr bool input_leaves(ActivationPlace place) {
  return place == ActivationPlace::kOffload || place == ActivationPlace::kSpill;
}

// One unit of the model, over all micro-batches of a step.
struct UnitCost {
  std::string name;
  std::uint64_t elements = 0;         // that are trained, and so have state and a gradient
  std::uint64_t frozen_elements = 0;  // that are not; then these pass through the slots
  std::uint64_t frozen_bytes = 0;     // of those, on the host
  double unpack_s = 0;                // of the GPU, each time those came from there
  double forward_s = 0;               // of the GPU
  double recompute_s = 0;
  double backward_s = 0;  // without recomputing; the cast of the gradient included
  // Of a wave: its input; 0 where backward does not need it: at both ends.
  std::uint64_t unit_input_bytes = 0;
  std::uint64_t kept_bytes = 0;     // likewise, what kKeep keeps besides
  std::vector<int> lenders;         // earlier units whose parameters it uses besides its own
  bool params_stay_in_ram = false;  // the host's copy of them, whatever the rules
  // With several ranks, where `elements` are those of a shard: of the gathered unit; and seconds of
  // the GPU, or of the host that computes, to add the ranks' sums of one use of it and cast them.
  std::uint64_t whole_elements = 0;
  double reduce_s = 0;
  // Of the gathered unit's frozen parameters, where their bytes are those of a shard; else 0.
  std::uint64_t gathered_frozen_bytes = 0;

  // What comes and goes: parameters that are trained beside frozen ones are few, and stay.
  bool is_frozen() const { return frozen_elements > 0; }
  std::uint64_t streamed_elements() const { return is_frozen() ? frozen_elements : elements; }
  // `width`: of a parameter that is trained.
  double streamed_bytes(double width) const {
    return is_frozen() ? static_cast<double>(frozen_bytes) : static_cast<double>(elements) * width;
  }
};

// Where a unit's state lies. Elements of gpu, cpu and nvme state add up to the unit's. Of a unit
// with frozen parameters the last three are about those: they are copies of what never changes, so
// a unit that is resident on the GPU has none on the host.
struct UnitPlacement {
  std::uint64_t gpu_elements = 0;  // the first of the unit; then it is resident, unless frozen
  std::uint64_t cpu_elements = 0;  // follow
  std::uint64_t nvme_elements = 0;
  bool resident = false;        // its parameters have a place of their own on the GPU
  bool params_on_nvme = false;  // the host's copy; never with `resident` and all state on the GPU
  ActivationPlace activations = ActivationPlace::kRecompute;

  friend bool operator==(const UnitPlacement&, const UnitPlacement&) = default;
};

struct StepBytes {        // a parameter's, by what the numbers are
  double param = 2;       // on the bus and, if so placed, on the drives
  double grad = 2;        // on the bus
  double sum = 4;         // of gradients, between waves
  double nvme_read = 10;  // state of an element on the drives
  double nvme_write = 10;
  double cpu_adamw_dram = 34;  // what the CPU's AdamW moves of DRAM
};

struct StepModelOptions {
  bool overlap_update = true;
  Waves waves;
  SumOrder sums;  // of gradients
  // Streamed units that are on the GPU, or on their way, besides the one in use: one less than
  // there are slots. The host enqueues far ahead of the GPU, so slots are what limits it.
  int prefetch_units = 2;
  int grad_stages = 2;  // on the GPU, for 16-bit gradients on their way out
  // State on NVMe is read, computed and written in records of at most this many elements, through
  // pinned buffers for this many.
  std::uint64_t record_elements = std::uint64_t{16} << 20;
  std::uint64_t swap_buffer_elements = std::uint64_t{64} << 20;
  int param_cache_units = 3;  // pinned buffers for units whose parameters are on NVMe
  int spill_units = 1;        // likewise, for inputs of units on NVMe, of a wave
  int gradient_buffers = 0;   // likewise, for sums of gradients on NVMe; 0: those are in RAM
  StepBytes bytes;
  RankGroup ranks;
  std::uint64_t exchanged_bytes = 0;  // of a sum of gradients, in one call; 0: all of it

  int slots() const { return prefetch_units + 1; }
};

enum class Resource : std::uint8_t {
  kGpu,
  kHostToGpu,
  kGpuToHost,
  kCpu,
  kDriveRead,
  kDriveWrite,
  kLink,  // between ranks
};
inline constexpr int kResources = 7;
std::string_view to_string(Resource resource);

struct StepSpan {
  Resource resource = Resource::kGpu;
  std::string what;  // "forward h3", "adamw h3", ...
  double begin_s = 0;
  double end_s = 0;
};

struct StepPrediction {
  double step_s = 0;  // infinite where a placement needs a resource that does not exist
  std::array<double, kResources> busy_s{};
  Resource bottleneck = Resource::kGpu;  // the one that is busy for the largest share of the step
  double forward_s = 0;                  // from the beginning of the step to the end of the head
  double update_exposed_s = 0;           // how long the GPU waits for updates
  double nvme_read_bytes = 0;
  double nvme_write_bytes = 0;
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  std::vector<StepSpan> spans;  // of one whole step; only when asked for
  // With several ranks: what one of them receives from the others, and how long the link is busy
  // while the GPU is not.
  double link_bytes = 0;
  double link_exposed_s = 0;

  double busy(Resource resource) const { return busy_s[static_cast<std::size_t>(resource)]; }
};

// `units` in forward order: embedding, blocks, head. As many places as units. A machine without a
// bus has nothing to cross it: host and GPU are one.
StepPrediction predict_step(const std::vector<UnitCost>& units,
                            const std::vector<UnitPlacement>& places, const MachineSpeeds& speeds,
                            const StepModelOptions& options, bool with_spans = false);

}  // namespace sluice::offload
