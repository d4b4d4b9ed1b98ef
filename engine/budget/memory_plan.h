// MemoryPlan: what a run takes of each tier, worked out from the configuration alone, before
// anything is allocated. It is printed as the preflight table, and the run then allocates exactly
// that.
//
// One value after another, each from those before it:
//
//   places    where each unit is (settled_places.h)
//   fetching  how many units are ahead of their use (fetch_plan.h)
//   state     the optimizer's, and what is resident for it (state_plan.h)
//   params    of the host, and of the base beside which adapters are trained (param_plan.h)
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
#include "engine/budget/fetch_plan.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/param_plan.h"
#include "engine/budget/run_spec.h"
#include "engine/budget/state_plan.h"
#include "engine/budget/stripe_plan.h"
#include "offload/planner/step_model.h"

namespace sluice::engine {

// What memory is for, insofar as remedies depend on it.
enum class MemoryUse : std::uint8_t {
  kActivations,  // of the compute device: grows with the micro-batch
  kUnitInputs,   // activations that went to the host, and on to the drives
  kState,
  kParameters,
  kCheckpointCopy,
  kFilesInMemory,  // an NVMe path that is memory
  kOther,
};

struct MemoryLine {
  std::string what;
  MemoryUse use = MemoryUse::kOther;
  std::uint64_t bytes = 0;
  bool locked = false;           // counts against RLIMIT_MEMLOCK
  std::vector<PathBytes> paths;  // of what is on NVMe: how much of it lies on each
};

struct MemoryPlan {
  RunPurpose purpose = RunPurpose::kTraining;
  bool cuda = false;
  NumberTypes types;
  FetchPlan fetching;
  StatePlan state;
  ParamPlan params;
  // Of the model's own parameters, where these are frozen; then the two above are of what is
  // trained beside them.
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
  offload::RankPart ranks;  // whose plan it is

  std::vector<MemoryLine> host;  // resident
  std::vector<MemoryLine> gpu;
  std::vector<MemoryLine> nvme;
  std::vector<std::string> notes;  // sentences: which keys ask for less than is needed, and so on

  std::uint64_t host_bytes() const;
  std::uint64_t locked_bytes() const;  // of the host's
  std::uint64_t gpu_bytes() const;
  std::uint64_t nvme_bytes() const;
  // Each path with what all lines have on it; paths with nothing are left out.
  std::vector<PathBytes> nvme_paths() const;
};

struct PlanOptions {
  RunPurpose purpose = RunPurpose::kTraining;
  bool on_gpu = false;  // whether the run computes on a GPU: uses_cuda(), or one that is assumed
  // What the run may take of the GPU: slots that are only there for reuse are given up where it is
  // too little.
  std::optional<std::uint64_t> gpu_room_bytes;
  // What the planner chose, by unit, for everything that the configuration leaves to it ("auto").
  // Empty: all of that goes to the host's memory.
  std::vector<offload::UnitPlacement> places;
  // Slots for blocks on the GPU that the planner counted with; 0: by the configuration, and by the
  // room.
  int block_slots = 0;
  // Of a wave, where the configuration leaves it open; 0: all micro-batches of a step.
  std::int64_t wave_micro_batches = 0;
  offload::RankPart ranks = {};
  const ParameterNames* names = nullptr;  // RunSpec::names, and the next as well
  bool keeps_sums = false;
  // Of budget.nvme_paths, where the configuration leaves them open ("auto"). Empty: equal.
  std::vector<int> nvme_weights;
};

// What the parts on the GPU are made with.
CudaSlotOptions slot_options(const MemoryPlan& plan);
CudaSlotOptions base_slot_options(const MemoryPlan& plan);  // plan.base is there
CudaSinkOptions sink_options(const MemoryPlan& plan);

// `model`: of configured_layout() for the same device. kInvalidArgument with a sentence for what
// cannot be meant.
Result<MemoryPlan> plan_memory(const config::Config& config, const ModelLayout& model,
                               const PlanOptions& options = {});

}  // namespace sluice::engine
