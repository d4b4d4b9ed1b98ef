// MemoryPlan: the memory that a run takes of each tier, computed from the configuration alone,
// before anything is allocated. It is printed as the preflight table, and the run then allocates
// exactly that.
//
// It is built in this order, each value from the ones above it:
//
//   places    where each unit is (resolved_placement.h)
//   fetching  how many units are fetched ahead of their use (param_plan.h)
//   state     the optimizer's state, and what is resident because of it (state_plan.h)
//   params    of the host, and of the frozen base if adapters are trained (param_plan.h)
//   lines     all bytes, as the ledger counts them for these places (memory_ledger.h)
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/activation_plan.h"
#include "engine/budget/base_form.h"
#include "engine/budget/gathering.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/param_plan.h"
#include "engine/budget/run_spec.h"
#include "engine/budget/state_plan.h"
#include "engine/budget/stripe_plan.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

// Purposes of memory, as far as the advice depends on them.
enum class MemoryUse : std::uint8_t {
  kActivations,  // on the compute device; grows with the micro-batch
  kUnitInputs,   // activations on the host and on the drives
  kState,
  kParameters,
  kCheckpointCopy,
  kFilesInMemory,  // an NVMe path in a file system in memory (tmpfs)
  kOther,
};

struct MemoryLine {
  std::string what;
  MemoryUse use = MemoryUse::kOther;
  std::uint64_t bytes = 0;
  bool locked = false;           // counts against RLIMIT_MEMLOCK
  std::vector<PathBytes> paths;  // for NVMe lines: the bytes on each path
};

struct MemoryPlan {
  RunPurpose purpose = RunPurpose::kTraining;
  bool cuda = false;
  NumberTypes types;
  FetchPlan fetching;
  StatePlan state;
  ParamPlan params;
  // The model's own parameters if they are frozen; `state` and `params` then hold the adapters.
  struct Base {
    ParamPlan params;
    offload::UnitResidency residency;
    BaseForm form;
  };
  std::optional<Base> base;
  ActivationPlan activations;
  std::optional<offload::ParamOffloader::Options> gradients;  // on NVMe (gradient_plan.h)
  offload::Waves waves;                                       // of a step
  offload::SumOrder sum_order;
  offload::HeldSums sums;   // of each unit's gradients
  offload::RankPart ranks;  // the rank that the plan is for
  Gathering gathering;      // of the units that are streamed

  std::vector<MemoryLine> host;  // resident memory
  std::vector<MemoryLine> gpu;
  std::vector<MemoryLine> nvme;
  std::vector<std::string> notes;  // e.g. keys that ask for less than is needed

  std::uint64_t host_bytes() const;
  std::uint64_t locked_bytes() const;  // part of host_bytes()
  std::uint64_t gpu_bytes() const;
  std::uint64_t nvme_bytes() const;
  // The bytes of all lines on each path; empty paths are left out.
  std::vector<PathBytes> nvme_paths() const;
};

struct PlanOptions {
  RunPurpose purpose = RunPurpose::kTraining;
  bool on_gpu = false;  // the run computes on a GPU: uses_cuda(), or an assumed one
  // GPU memory that the run may take. Slots that exist only for reuse are given up if it is too
  // little.
  std::optional<std::uint64_t> gpu_room_bytes;
  // The planner's choice per unit, for everything that the configuration leaves to it ("auto").
  // Empty: all of that goes to host memory.
  std::vector<offload::UnitPlacement> places;
  // GPU slots for blocks that the planner counted with; 0: determined by the configuration and by
  // gpu_room_bytes.
  int block_slots = 0;
  // Per wave, if the configuration leaves it open; 0: all micro-batches of a step.
  std::int64_t wave_micro_batches = 0;
  offload::RankPart ranks = {};
  const ParameterNames* names = nullptr;  // RunSpec::names
  bool keeps_sums = false;                // RunSpec::keeps_sums
  bool moves_gradients = false;           // RunSpec::moves_gradients
  bool copies_on_gpu = false;             // RunSpec::copies_on_gpu
  // Stripe weights of budget.nvme_paths, if the configuration leaves them open ("auto"). Empty:
  // equal.
  std::vector<int> nvme_weights;
};

// Options for the parts on the GPU.
CudaSlotOptions slot_options(const MemoryPlan& plan);
CudaSlotOptions base_slot_options(const MemoryPlan& plan);  // requires plan.base
CudaSinkOptions sink_options(const MemoryPlan& plan);

// `model`: from configured_layout() for the same device. Returns kInvalidArgument with a sentence
// for a contradictory configuration.
Result<MemoryPlan> plan_memory(const config::Config& config, const ModelLayout& model,
                               const PlanOptions& options = {});

}  // namespace sluice::engine
