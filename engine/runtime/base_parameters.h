// BaseParameters: the frozen parameters of a model beside which adapters are trained. They are read
// once, from a weights file, and never change: on the host, in RAM or a store of their own on NVMe,
// or, for resident units, on the GPU alone. Every rank reads all of them; of what is sharded
// (BaseForm) its host keeps this rank's part.
//
// Memory:  plan.base; load() works through some MiB.
// Threads: one.
// Errors:  name the file, or the unit.
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

class BaseParameters {
 public:
  // `plan` has a base; `model` is the run's. All must outlive it. `executor`: may be null.
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

  // What passes get: these, and the adapters. Once.
  std::unique_ptr<UnitParameters> beside(std::unique_ptr<UnitParameters> adapters);

  // From model.init_from, or at random where that is empty. `progress`: elements done; its error
  // ends the call.
  Status load(const config::Config& config, aio::IoQueue& queue, const ModelShape& shape,
              const std::function<Status(std::uint64_t done)>& progress);
  std::uint64_t elements() const { return elements_; }
  const BaseFingerprint& fingerprint() const { return fingerprint_; }  // once loaded

  offload::ParamStats stats() const { return params_->stats(); }

 private:
  BaseParameters(const MemoryPlan& plan, const ModelLayout& model, aio::Executor* executor);
  struct Load;
  Status load_unit(int unit, Load& load);
  bool put(const UnitLayout& unit, std::uint64_t first, std::span<const float> values,
           std::span<std::byte> to) const;
  bool put_computed(const UnitLayout& unit, std::uint64_t first, std::span<const float> values,
                    std::byte* to) const;
  using PieceWork = std::function<bool(std::uint64_t begin, std::uint64_t end)>;
  bool in_pieces(std::uint64_t elements, const PieceWork& work) const;

  const ModelLayout& model_;
  const ModelLayout layout_;  // of the base
  const BaseForm form_;
  aio::Executor* const executor_;  // may be null
  std::uint64_t elements_ = 0;
  BaseFingerprint fingerprint_;
  std::unique_ptr<offload::ParamOffloader> params_;
  std::unique_ptr<UnitParameters> made_;  // until beside()
  UnitParameters* device_ = nullptr;      // the same, for as long as it lives
};

}  // namespace sluice::engine
