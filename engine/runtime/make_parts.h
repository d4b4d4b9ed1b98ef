// The parts that a training run and an evaluation have in common, as the configuration asks for
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/io_backend.h"
#include "aio/io_queue.h"
#include "aio/io_watchdog.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/device/host.h"
#include "engine/observe/trace_log.h"
#include "engine/step/cuda_step.h"
#include "engine/step/gradient_sink.h"
#include "engine/step/unit_parameters.h"

namespace sluice::engine {

// The queues refer to the backend, the watchdog (null: not wanted) to the queues.
struct RunDrives {
  std::unique_ptr<aio::IoBackend> backend;
  std::unique_ptr<aio::IoQueue> reads;
  std::unique_ptr<aio::IoQueue> writes;
  std::unique_ptr<aio::IoQueue> saves;  // of checkpoints
  std::unique_ptr<aio::IoWatchdog> watchdog;
};
// The observer, if there is one, must outlive them.
Result<RunDrives> open_drives(const config::Config& config, aio::IoObserver* observer = nullptr);

// The link between the GPUs of several ranks; empty where there is one rank, or no GPU.
class GpuRanks {
 public:
  // For all ranks to call. Puts itself before `ranks.link`, which must outlive it: from then on
  // what GPUs exchange goes by NCCL, all else as before.
  Status connect(const MemoryPlan& plan, RankLink& ranks);
  CudaRankLink* get() const { return cuda_.get(); }  // null: empty

 private:
  std::unique_ptr<Communicator> link_;
  std::shared_ptr<CudaRankLink> cuda_;
};

// What the offloaders are made with: the plan's, in memory that the GPU's copies need pinned.
offload::ParamOffloader::Options param_options(const MemoryPlan& plan);
offload::ParamOffloader::Options base_param_options(const MemoryPlan& plan);  // plan.base is there
offload::OptimizerOffloader::Options optimizer_options(const MemoryPlan& plan);
offload::InputSpill::Options spill_options(const MemoryPlan& plan);

// Null where the plan keeps gradients elsewhere.
Result<std::unique_ptr<offload::ParamOffloader>> make_gradient_places(const MemoryPlan& plan,
                                                                      const RunDrives& drives);

// On a GPU, in RAM, or in those places, if there are any. All must outlive it; during finish() the
// executor is exclusive to it.
struct GradientParts {
  aio::Executor* executor = nullptr;
  offload::ParamOffloader* places = nullptr;  // make_gradient_places()
  RankLink ranks = {};
  CudaRankLink* link = nullptr;  // of several ranks with GPUs
  TraceLog* trace = nullptr;
};
Result<std::unique_ptr<GradientSink>> make_gradient_sink(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const GradientParts& parts);

at::Device compute_device(const MemoryPlan& plan);

// All must outlive it. `link`: of several ranks with GPUs.
Result<std::unique_ptr<UnitParameters>> make_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& model, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace = nullptr);
// Likewise of the plan's base; `base` is its layout.
Result<std::unique_ptr<UnitParameters>> make_base_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& base, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace = nullptr);

}  // namespace sluice::engine
