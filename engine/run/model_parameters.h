// ModelParameters: what a run's passes compute with: all of a model's parameters, or adapters and
// the frozen base beside which they are trained; in memory, or in stores of their own on NVMe.
//
// Memory:  what the plan has of parameters, their slots and the base.
// Threads: one.
// Errors:  name the file, the store or the unit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/config/config.h"
#include "engine/run/base_parameters.h"
#include "engine/run/load_parameters.h"
#include "engine/run/run_resources.h"
#include "engine/step/unit_parameters.h"
#include "offload/params/param_offloader.h"

namespace sluice::engine {

class ModelParameters {
 public:
  // All must outlive it. Executors check records of what is trained, and of the base; each may be
  // null.
  struct Environment {
    RunDrives* drives = nullptr;
    aio::Executor* executor = nullptr;
    aio::Executor* base_executor = nullptr;
    TraceLog* trace = nullptr;
    RankLink ranks = {};
    CudaRankLink* cuda_ranks = nullptr;  // on GPUs
  };
  // Without content: load(), or whoever trains sets it.
  static Result<std::unique_ptr<ModelParameters>> create(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const Environment& environment);
  ~ModelParameters();  // removes the stores
  // No pass follows: what one holds that ended in its middle is released. units() are gone.
  void end_passes() { units_.reset(); }
  ModelParameters(const ModelParameters&) = delete;
  ModelParameters& operator=(const ModelParameters&) = delete;

  UnitParameters& units() const { return *units_; }               // as passes get them
  offload::ParamOffloader& trained() const { return *trained_; }  // without the base
  BaseParameters* base() const { return base_.get(); }            // null: there are no adapters
  offload::ParamStats stats() const { return trained_->stats(); }

  // Elements done, out of how many there are to load.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  // What a configuration names: model.init_from, or recipe.lora.adapter beside it.
  Status load(const config::Config& config, const ModelShape& shape, const Progress& progress);
  // What a checkpoint holds, of adapters beside model.init_from. kInvalidArgument where it is of
  // another model, recipe or base than the configuration's.
  Status load(CheckpointReader& checkpoint, const config::Config& config, const ModelShape& shape,
              const Progress& progress);

 private:
  ModelParameters(const MemoryPlan& plan, const ModelLayout& model, const Environment& environment);
  Status load_trained(const ReadParameter& read, const Progress& progress);
  Status load_base(const config::Config& config, const ModelShape& shape, const Progress& progress);

  const ModelLayout& model_;
  const offload::ParamForm form_;
  aio::IoQueue& reads_;
  std::unique_ptr<BaseParameters> base_;
  std::unique_ptr<offload::ParamOffloader> trained_;
  std::unique_ptr<UnitParameters> units_;
};

}  // namespace sluice::engine
