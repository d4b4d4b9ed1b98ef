// ModelParameters: what a run's passes compute with: all of a model's parameters, or adapters and
// the frozen base beside which they are trained; in memory, or in stores of their own on NVMe.
//
// Memory:  what the plan has of parameters, their slots and the base.
// Threads: one.
// Errors:  name the file, the store or the unit.
#pragma once

#include <memory>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/runtime/base_parameters.h"
#include "engine/runtime/make_parts.h"
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
  // Without content: load_model() (engine/run/load_model.h) sets it, or whoever trains.
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

 private:
  ModelParameters() = default;

  std::unique_ptr<BaseParameters> base_;
  std::unique_ptr<offload::ParamOffloader> trained_;
  std::unique_ptr<UnitParameters> units_;
};

}  // namespace sluice::engine
