// ModelParameters: the parameters that a run's passes compute with: all of a model's, or adapters
// and the frozen base on which they are trained. They are in memory, or in separate stores on NVMe.
//
// Memory:  the plan's parameters, their slots and the base.
// Threads: one.
// Errors:  name the file, the store or the unit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/exchange/base_fingerprint.h"
#include "engine/runtime/make_parts.h"
#include "engine/step/unit_parameters.h"
#include "offload/params/param_offloader.h"

namespace sluice::engine {

// BaseParameters: the frozen parameters of a model on which adapters are trained. They are read
// once, from a weights file, and never change. They are on the host, in RAM or in a separate store
// on NVMe; resident units are only on the GPU. Every rank reads all of them. If they are sharded
// (BaseForm), its host keeps this rank's part.
//
// Memory:  plan.base; load() uses some MiB of scratch.
// Threads: one.
// Errors:  name the file or the unit.
class BaseParameters {
 public:
  // `plan` must have a base; `model` is the run's. All must outlive it. `executor` may be null.
  struct Environment {
    RunDrives* drives = nullptr;
    aio::Executor* executor = nullptr;
    TraceLog* trace = nullptr;
    RankLink ranks = {};
    CudaRankLink* cuda_ranks = nullptr;  // on GPUs
  };
  static Result<std::unique_ptr<BaseParameters>> create(const MemoryPlan& plan,
                                                        const ModelLayout& model,
                                                        const Environment& environment);
  ~BaseParameters();  // removes the store

  // Returns what passes get: the base and the adapters. Call it once.
  std::unique_ptr<UnitParameters> beside(std::unique_ptr<UnitParameters> adapters);

  // Loads from model.init_from, or initializes at random if that is empty. `progress` gets the
  // elements done; its error ends the call.
  Status load(const config::Config& config, aio::IoQueue& queue, const ModelShape& shape,
              const std::function<Status(std::uint64_t done)>& progress);
  std::uint64_t elements() const { return elements_; }
  const BaseFingerprint& fingerprint() const { return fingerprint_; }  // valid after load()

  offload::ParamStats stats() const { return params_->stats(); }

 private:
  BaseParameters(const MemoryPlan& plan, const ModelLayout& model, aio::Executor* executor);
  struct Load;
  struct Tile;
  class HostPart;
  using TileWork = std::function<Status(const Tile& tile, std::span<const float> values)>;
  Status load_unit(int unit, Load& load);
  Status visit_tiles(const UnitLayout& unit, const ParameterSpec& parameter, Load& load,
                     const TileWork& visit) const;
  Result<float> scale_offset(const UnitLayout& unit, const ParameterSpec& parameter,
                             Load& load) const;
  bool put(const Tile& tile, std::span<std::byte> to) const;
  bool put_encoded(const Tile& tile, const offload::EncodedUnit& unit, const HostPart& part) const;
  bool put_computed(const Tile& tile, std::byte* to) const;
  using PieceWork = std::function<bool(std::uint64_t begin, std::uint64_t end)>;
  bool in_pieces(std::uint64_t elements, const PieceWork& work) const;

  const ModelLayout& model_;
  const ModelLayout layout_;  // the base's layout
  const BaseForm form_;
  aio::Executor* const executor_;  // may be null
  std::uint64_t elements_ = 0;
  BaseFingerprint fingerprint_;
  std::unique_ptr<offload::ParamOffloader> params_;
  std::unique_ptr<UnitParameters> made_;  // until the passes get it
  UnitParameters* device_ = nullptr;      // the same object, while it lives
};

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
