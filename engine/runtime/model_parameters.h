// ModelParameters: the parameters that a run's passes compute with: all of a model's, or adapters
// and the frozen base on which they are trained. They are in memory, or in separate stores on NVMe.
//
// Memory:  the plan's parameters, their slots and the base.
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
  // All must outlive it. The executors verify the records of trained parameters and of the base;
  // each may be null.
  struct Environment {
    RunDrives* drives = nullptr;
    aio::Executor* executor = nullptr;
    aio::Executor* base_executor = nullptr;
    TraceLog* trace = nullptr;
    RankLink ranks = {};
    CudaRankLink* cuda_ranks = nullptr;  // only on GPUs
  };
  // Leaves the values unset: load_model() (engine/run/load_model.h) or the training driver sets
  // them.
  static Result<std::unique_ptr<ModelParameters>> create(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const Environment& environment);
  ~ModelParameters();  // removes the stores
  // Call it when no pass follows: releases units that an aborted pass still holds. units() is then
  // invalid.
  void end_passes() { units_.reset(); }
  ModelParameters(const ModelParameters&) = delete;
  ModelParameters& operator=(const ModelParameters&) = delete;

  UnitParameters& units() const { return *units_; }               // for passes
  offload::ParamOffloader& trained() const { return *trained_; }  // not the base
  BaseParameters* base() const { return base_.get(); }            // null: no adapters
  offload::ParamStats stats() const { return trained_->stats(); }

 private:
  ModelParameters() = default;

  std::unique_ptr<BaseParameters> base_;
  std::unique_ptr<offload::ParamOffloader> trained_;
  std::unique_ptr<UnitParameters> units_;
};

}  // namespace sluice::engine
