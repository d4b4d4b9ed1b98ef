// The parts that training runs and evaluations share, made as the configuration asks.
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

// The queues refer to the backend, and the watchdog (null: disabled) refers to the queues.
struct RunDrives {
  std::unique_ptr<aio::IoBackend> backend;
  std::unique_ptr<aio::IoQueue> reads;
  std::unique_ptr<aio::IoQueue> writes;
  std::unique_ptr<aio::IoQueue> saves;  // for checkpoints
  std::unique_ptr<aio::IoWatchdog> watchdog;
};
// The observer, if any, must outlive them.
Result<RunDrives> open_drives(const config::Config& config, aio::IoObserver* observer = nullptr,
                              const MakeBackend& make_backend = make_run_backend);

// The link between the GPUs of several ranks; empty if there is one rank, or no GPU.
class GpuRanks {
 public:
  // Collective. Replaces `ranks.link` with a link that exchanges GPU memory through NCCL and all
  // else through the original link, which must outlive it.
  Status connect(const MemoryPlan& plan, RankLink& ranks);
  CudaRankLink* get() const { return cuda_.get(); }  // null: empty
  // The link that units are gathered over. With one rank whose units are rounded as if they were
  // gathered, it is to itself.
  CudaRankLink* of_units() const { return cuda_ ? cuda_.get() : alone_.get(); }

 private:
  std::unique_ptr<Communicator> link_;
  std::shared_ptr<CudaRankLink> cuda_;
  std::shared_ptr<CudaRankLink> alone_;
};

// The offloaders' options, from the plan. If there is a GPU their memory is pinned for its copies.
offload::ParamOffloader::Options param_options(const MemoryPlan& plan);
offload::ParamOffloader::Options base_param_options(const MemoryPlan& plan);  // requires plan.base
offload::OptimizerOffloader::Options optimizer_options(const MemoryPlan& plan);
offload::InputSpill::Options spill_options(const MemoryPlan& plan);

// Null if the plan keeps gradients elsewhere.
Result<std::unique_ptr<offload::ParamOffloader>> make_gradient_places(const MemoryPlan& plan,
                                                                      const RunDrives& drives);

// The sink accumulates on the GPU, in RAM, or in `places` if there are any. All must outlive it;
// finish() needs the executor to itself.
struct GradientParts {
  aio::Executor* executor = nullptr;
  offload::ParamOffloader* places = nullptr;  // make_gradient_places()
  RankLink ranks = {};
  CudaRankLink* link = nullptr;  // only with several ranks with GPUs
  TraceLog* trace = nullptr;
};
Result<std::unique_ptr<GradientSink>> make_gradient_sink(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const GradientParts& parts);

at::Device compute_device(const MemoryPlan& plan);

// All must outlive it. `link`: only with several ranks with GPUs.
Result<std::unique_ptr<UnitParameters>> make_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& model, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace = nullptr);
// The same for the plan's base, whose layout is `base`.
Result<std::unique_ptr<UnitParameters>> make_base_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& base, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace = nullptr);

}  // namespace sluice::engine
