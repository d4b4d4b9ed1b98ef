// MemoryPlan: what a run takes of each tier, worked out from the configuration alone, before
// anything is allocated; and whether the machine has it. It is printed as the preflight table, and
// the run then allocates exactly that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/budget/configured_model.h"
#include "engine/budget/gpu_plan.h"
#include "engine/budget/save_plan.h"
#include "engine/budget/stripe_plan.h"
#include "engine/budget/unit_input_plan.h"
#include "engine/config/config.h"
#include "engine/model/model_layout.h"
#include "offload/params/param_offloader.h"
#include "offload/planner/step_model.h"
#include "offload/state/optimizer_offloader.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

enum class RunPurpose : std::uint8_t { kTraining, kEvaluation, kGeneration };

// What memory is for, insofar as remedies depend on it.
enum class MemoryUse : std::uint8_t {
  kActivations,  // of the compute device: grows with the micro-batch
  kUnitInputs,   // activations that went to the host
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

// What CUDA takes of a GPU for a process before the process takes anything.
inline constexpr std::uint64_t kCudaContextBytes = std::uint64_t{512} << 20;

struct MemoryPlan {
  RunPurpose purpose = RunPurpose::kTraining;
  bool cuda = false;
  std::vector<bool> keeps_activations;  // by unit, between forward and backward; else recomputed
  offload::UnitResidency residency;     // on the GPU
  std::uint64_t state_bytes_on_gpu = 0;
  bool background_checkpoints = false;          // their copy of the state is a line of `host` then
  int prefetch_units = 1;                       // fetched ahead of their use
  int block_slots = 3;                          // on the GPU, for the parameters of blocks
  std::optional<UnitInputOptions> unit_inputs;  // those that go from the GPU to the host
  // How many micro-batches go through the units together in an evaluation.
  std::uint64_t evaluation_micro_batches = 1;
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::GradType grad_type = offload::GradType::kBf16;
  offload::ParamOffloader::Options params;
  offload::OptimizerOffloader::Options optimizer;  // training: else nothing is in it

  std::vector<MemoryLine> host;  // resident
  std::vector<MemoryLine> gpu;
  std::vector<MemoryLine> nvme;
  std::optional<double> predicted_step_s;
  SavePlan saves;                  // of a training run that has a folder
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
  // Of budget.nvme_paths, where the configuration leaves them open ("auto"). Empty: equal.
  std::vector<int> nvme_weights;
};

// What the parts on the GPU are made with.
CudaSlotOptions slot_options(const MemoryPlan& plan);
CudaSinkOptions sink_options(const MemoryPlan& plan);

// `model`: of configured_layout() for the same device. kInvalidArgument with a sentence for what
// cannot be meant.
Result<MemoryPlan> plan_memory(const config::Config& config, const ModelLayout& model,
                               const PlanOptions& options = {});

}  // namespace sluice::engine
