// StepModel: predicts when each part of a training step runs, for a placement and a machine's
// speeds. It runs the step's program (step_program.h) on the machine's resources in virtual time.
// The planner minimises the predicted time, and `sluice plan` prints it.
//
// A step is counted from one norm to the next. First comes the update of the previous step, under
// this step's forward. Then come the head, which is forward and backward in one; backward; and the
// norm, once all gradients have reached the optimizer. Without drives every such period begins with
// all resources idle, so the first one is the steady state. With drives, writes and reads extend
// across the norm, so three steps are simulated and the last one is reported.
//
// If a step has several waves, a unit's costs that depend on the batch are for all waves together,
// and each wave has its share. Only one wave's data is kept between forward and backward. Between
// waves, fp32 sums of gradients move out and back for units with state on the host, over the bus if
// there is one.
//
// With several ranks the step of one rank is modelled. State, AdamW, host copies and drives handle
// its shards (unit_shards.h), while passes use whole units. A unit that is not on the GPU is
// gathered before a pass, once in each wave and again for backward, and the last wave's sums are
// reduced. Calls of a few bytes, such as those for the norm, are not modelled.
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

// Where the activations of a unit are between forward and backward.
enum class ActivationPlace : std::uint8_t {
  kKeep,       // everything that backward needs stays on the GPU
  kRecompute,  // the unit's input stays on the GPU; the rest is recomputed
  kOffload,    // recomputed, and the input goes to pinned RAM and back
  kSpill,      // recomputed, and the input goes through pinned RAM to the drives and back
};

// Whether a unit's input leaves the GPU between its passes.
constexpr bool input_leaves(ActivationPlace place) {
  return place == ActivationPlace::kOffload || place == ActivationPlace::kSpill;
}

// The costs of one unit of the model, over all micro-batches of a step.
struct UnitCost {
  std::string name;
  std::uint64_t elements = 0;         // trained ones, which have state and a gradient
  std::uint64_t frozen_elements = 0;  // frozen ones; if any, these go through the slots
  std::uint64_t frozen_bytes = 0;     // the frozen elements' bytes on the host
  double unpack_s = 0;   // GPU time, each time the frozen elements arrive from the host
  double forward_s = 0;  // GPU time, like the next two
  double recompute_s = 0;
  double backward_s = 0;  // without recomputing; includes the cast of the gradient
  // One wave's input; 0 for the first and the last unit, whose backward does not need it.
  std::uint64_t unit_input_bytes = 0;
  std::uint64_t kept_bytes = 0;     // per wave, what kKeep keeps in addition
  std::vector<int> lenders;         // earlier units whose parameters it also uses
  bool params_stay_in_ram = false;  // the host's copy stays in RAM, whatever the rules say
  // With several ranks, where `elements` is the size of a shard: elements of the gathered unit; and
  // the seconds of the GPU, or of the computing host, to add the ranks' sums of one use of the unit
  // and to cast them.
  std::uint64_t whole_elements = 0;
  double reduce_s = 0;
  // Bytes of the gathered unit's frozen parameters if frozen_bytes is the size of a shard; else 0.
  std::uint64_t gathered_frozen_bytes = 0;
  // Bytes of the gathered unit's trained parameters as they are sent; 0: those of whole_elements.
  std::uint64_t sent_bytes = 0;

  // Elements that are streamed. Trained parameters next to frozen ones are few, and stay on the
  // GPU.
  bool is_frozen() const { return frozen_elements > 0; }
  std::uint64_t streamed_elements() const { return is_frozen() ? frozen_elements : elements; }
  // `width`: bytes of a trained parameter.
  double streamed_bytes(double width) const {
    return is_frozen() ? static_cast<double>(frozen_bytes) : static_cast<double>(elements) * width;
  }
};

// Where a unit's state is stored. Elements of gpu, cpu and nvme state add up to the unit's
// elements. For a unit with frozen parameters the last three members describe those. Their host
// copies never change, so a unit that is resident on the GPU has none on the host.
struct UnitPlacement {
  std::uint64_t gpu_elements = 0;  // the unit's first; makes it resident, unless it is frozen
  std::uint64_t cpu_elements = 0;  // the elements after those
  std::uint64_t nvme_elements = 0;
  bool resident = false;        // its parameters have their own place on the GPU
  bool params_on_nvme = false;  // host copy; false if resident with all state on the GPU
  ActivationPlace activations = ActivationPlace::kRecompute;

  friend bool operator==(const UnitPlacement&, const UnitPlacement&) = default;
};

struct StepBytes {        // per element
  double param = 2;       // on the bus and, where placed there, on the drives
  double grad = 2;        // on the bus
  double sum = 4;         // gradient sum, between waves
  double nvme_read = 10;  // state, if it is on the drives
  double nvme_write = 10;
  double cpu_adamw_dram = 34;  // DRAM traffic of the CPU's AdamW
};

struct StepModelOptions {
  bool overlap_update = true;
  Waves waves;
  SumOrder sums;  // order of gradient sums
  // Streamed units that are on the GPU or on their way there, in addition to the one in use: the
  // number of slots less one. The host enqueues far ahead of the GPU, so only slots limit it.
  int prefetch_units = 2;
  int grad_stages = 2;  // on the GPU, for 16-bit gradients on their way to the host
  // State on NVMe is read, computed and written in records of at most record_elements, through
  // pinned buffers of swap_buffer_elements in total.
  std::uint64_t record_elements = std::uint64_t{16} << 20;
  std::uint64_t swap_buffer_elements = std::uint64_t{64} << 20;
  int param_cache_units = 3;  // pinned buffers for units whose parameters are on NVMe
  int spill_units = 1;        // pinned buffers for one wave's unit inputs that go to NVMe
  int gradient_buffers = 0;   // pinned buffers for gradients on NVMe; 0: gradients are in RAM
  int kept_sums = 0;          // of a unit, for which a place on NVMe has room (HeldSums::kept)
  StepBytes bytes;
  Topology ranks;
  // With several hosts: a host keeps what it gathered, so that a unit's later gathers in a step do
  // not cross the network.
  bool keeps_host_copies = false;
  std::uint64_t exchanged_bytes = 0;  // per call, for a gradient sum; 0: all in one call

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
  double step_s = 0;  // infinite if a placement needs a resource that does not exist
  std::array<double, kResources> busy_s{};
  Resource bottleneck = Resource::kGpu;  // busy for the largest share of the step
  double forward_s = 0;                  // from the start of the step to the end of the head
  double update_exposed_s = 0;           // how long the GPU waits for updates
  double nvme_read_bytes = 0;
  double nvme_write_bytes = 0;
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  std::vector<StepSpan> spans;  // of one whole step; only if requested
  // With several ranks: the bytes that one rank receives from the others, and how long the link is
  // busy while the GPU is not.
  double link_bytes = 0;
  double link_exposed_s = 0;

  double busy(Resource resource) const { return busy_s[static_cast<std::size_t>(resource)]; }
};

// `units` are in forward order: embedding, blocks, head. `places` has one entry per unit. On a
// machine without a bus, host and GPU are the same and nothing is copied between them.
StepPrediction predict_step(const std::vector<UnitCost>& units,
                            const std::vector<UnitPlacement>& places, const MachineSpeeds& speeds,
                            const StepModelOptions& options, bool with_spans = false);

}  // namespace sluice::offload
