// MemoryPlan: what a run takes of each tier, worked out from the configuration alone, before
// anything is allocated; and whether the machine has it. It is printed as the preflight table, and
// the run then allocates just that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/model/gpt_model.h"
#include "offload/optimizer_offloader.h"
#include "offload/param_offloader.h"

namespace sluice::engine {

enum class RunPurpose : std::uint8_t { kTraining, kEvaluation, kGeneration };

struct MemoryLine {
  std::string what;
  std::uint64_t bytes = 0;
};

struct MemoryPlan {
  RunPurpose purpose = RunPurpose::kTraining;
  bool cuda = false;
  bool recompute = true;
  int block_slots = 3;  // on the GPU, for the parameters of blocks
  // How many micro-batches go through the units together in an evaluation.
  std::uint64_t evaluation_micro_batches = 1;
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::GradType grad_type = offload::GradType::kBf16;
  offload::ParamOffloader::Options params;
  offload::OptimizerOffloader::Options optimizer;  // training: else nothing is in it

  std::vector<MemoryLine> host;  // resident
  std::vector<MemoryLine> gpu;
  std::vector<MemoryLine> nvme;
  std::uint64_t host_bytes() const;
  std::uint64_t gpu_bytes() const;
  std::uint64_t nvme_bytes() const;
};

struct PlanOptions {
  RunPurpose purpose = RunPurpose::kTraining;
};

GptShape gpt_shape(const config::Model& model);
// With as many positions as a text may have that the model continues: those it was trained with.
GptShape generation_shape(const config::Config& config);

// kInvalidArgument with a sentence for what cannot be meant.
Result<MemoryPlan> plan_memory(const config::Config& config, const GptModel& model,
                               const PlanOptions& options = {});

}  // namespace sluice::engine
