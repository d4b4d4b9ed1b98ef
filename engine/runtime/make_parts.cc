#include "engine/runtime/make_parts.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "aio/log.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_step.h"
#include "engine/step/gradient_sink.h"

namespace sluice::engine {
namespace {

std::unique_ptr<UnitParameters> make_cpu_unit_parameters(const BaseForm& form,
                                                         const ModelLayout& model,
                                                         offload::ParamOffloader& params,
                                                         Communicator& link,
                                                         const Gathering& gathering) {
  return std::make_unique<CpuUnitParameters>(model, form, params, link, gathering);
}

}  // namespace

Result<RunDrives> open_drives(const config::Config& config, aio::IoObserver* observer,
                              const MakeBackend& make_backend) {
  RunDrives drives;
  SLUICE_ASSIGN_OR_RETURN(drives.backend, make_backend(config));
  const aio::IoQueue::Options options{
      .block_bytes = static_cast<std::uint64_t>(config.aio.block_bytes),
      .queue_depth = static_cast<int>(config.aio.queue_depth),
      .observer = observer};
  SLUICE_ASSIGN_OR_RETURN(drives.reads, aio::IoQueue::create(*drives.backend, options));
  SLUICE_ASSIGN_OR_RETURN(drives.writes, aio::IoQueue::create(*drives.backend, options));
  SLUICE_ASSIGN_OR_RETURN(drives.saves, aio::IoQueue::create(*drives.backend, options));
  if (config.run.io_watchdog_s > 0) {
    drives.watchdog = std::make_unique<aio::IoWatchdog>(
        std::vector<const aio::IoQueue*>{drives.reads.get(), drives.writes.get(),
                                         drives.saves.get()},
        aio::IoWatchdog::Options{.limit_ns =
                                     static_cast<std::int64_t>(config.run.io_watchdog_s * 1e9)});
  }
  return drives;
}

Status GpuRanks::connect(const MemoryPlan& plan, RankLink& ranks) {
  if (!plan.cuda) return {};
  if (ranks.part.world == 1) {
    if (plan.gathering.in_int8) alone_ = make_cuda_rank_link(ranks);
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(link_, make_gpu_communicator(*ranks.link));
  ranks.link = link_.get();
  cuda_ = make_cuda_rank_link(ranks);
  return {};
}

offload::ParamOffloader::Options param_options(const MemoryPlan& plan) {
  offload::ParamOffloader::Options options = plan.params.options;
  if (plan.cuda) options.hook = cuda_pin_hook();
  return options;
}

offload::ParamOffloader::Options base_param_options(const MemoryPlan& plan) {
  offload::ParamOffloader::Options options = plan.base->params.options;
  if (plan.cuda) options.hook = cuda_pin_hook();
  return options;
}

offload::OptimizerOffloader::Options optimizer_options(const MemoryPlan& plan) {
  offload::OptimizerOffloader::Options options = plan.state.optimizer;
  if (plan.cuda) options.hook = cuda_pin_hook();
  return options;
}

offload::InputSpill::Options spill_options(const MemoryPlan& plan) {
  offload::InputSpill::Options options = plan.activations.spill;
  if (plan.cuda) options.hook = cuda_pin_hook();
  return options;
}

Result<std::unique_ptr<offload::ParamOffloader>> make_gradient_places(const MemoryPlan& plan,
                                                                      const RunDrives& drives) {
  if (!plan.gradients) return std::unique_ptr<offload::ParamOffloader>();
  offload::ParamOffloader::Options options = *plan.gradients;
  if (plan.cuda) options.hook = cuda_pin_hook();
  return offload::ParamOffloader::create(
      options, {.reads = drives.reads.get(), .writes = drives.writes.get(), .executor = nullptr});
}

Result<std::unique_ptr<GradientSink>> make_gradient_sink(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const GradientParts& parts) {
  if (plan.cuda)
    return make_cuda_gradient_sink(
        model, sink_options(plan),
        {.places = parts.places, .link = parts.link, .trace = parts.trace});
  if (parts.places != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(auto on_nvme,
                            NvmeGradientSink::create(model, *parts.executor, *parts.places,
                                                     {.type = plan.types.gradient,
                                                      .isa = plan.state.optimizer.isa,
                                                      .order = plan.sum_order}));
    return std::unique_ptr<GradientSink>(std::move(on_nvme));
  }
  SLUICE_ASSIGN_OR_RETURN(auto in_ram, CpuGradientSink::create(model, *parts.executor,
                                                               {.type = plan.types.gradient,
                                                                .isa = plan.state.optimizer.isa,
                                                                .order = plan.sum_order,
                                                                .sums = plan.sums,
                                                                .ranks = parts.ranks}));
  return std::unique_ptr<GradientSink>(std::move(in_ram));
}

at::Device compute_device(const MemoryPlan& plan) { return plan.cuda ? at::kCUDA : at::kCPU; }

Result<std::unique_ptr<UnitParameters>> make_unit_parameters(const MemoryPlan& plan,
                                                             const ModelLayout& model,
                                                             offload::ParamOffloader& params,
                                                             const RankLink& ranks,
                                                             CudaRankLink* link, TraceLog* trace) {
  if (plan.cuda) return make_cuda_unit_parameters(model, slot_options(plan), params, link, trace);
  return make_cpu_unit_parameters({.form = plan.types.form, .ranks = ranks.part}, model, params,
                                  *ranks.link, plan.base ? Gathering() : plan.gathering);
}

Result<std::unique_ptr<UnitParameters>> make_base_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& base, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace) {
  if (plan.cuda)
    return make_cuda_unit_parameters(base, base_slot_options(plan), params,
                                     plan.base->form.is_sharded() ? link : nullptr, trace);
  return make_cpu_unit_parameters(plan.base->form, base, params, *ranks.link, plan.gathering);
}

}  // namespace sluice::engine
