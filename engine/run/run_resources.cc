#include "engine/run/run_resources.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "aio/log.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/model/torch_types.h"
#include "engine/step/cuda_step.h"
#include "engine/step/nvme_gradient_sink.h"
#include "swap/store_inventory.h"

namespace sluice::engine {
namespace {

// What the killed predecessors of any run left on the paths is of no use to anybody. What else
// takes space there, and may be of no use either, is for the user to judge.
Status clear_leftovers(aio::IoQueue& queue, std::vector<std::string> paths) {
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  SLUICE_ASSIGN_OR_RETURN(const auto sweep, swap::remove_leftovers(queue, paths));
  for (const swap::FoundRun& run : sweep.removed) log::info("removed: " + swap::describe(run));
  std::uint64_t kept_bytes = 0;
  for (const swap::FoundRun& run : sweep.kept)
    if (run.condition == swap::StoreCondition::kElsewhere ||
        run.condition == swap::StoreCondition::kUnknown)
      kept_bytes += run.bytes;
  if (kept_bytes == 0) return {};
  std::string command = "sluice scrub";
  for (const std::string& path : paths) command += " " + path;
  log::info("stores whose runs may live elsewhere, or that cannot be read, hold " +
            format_bytes(kept_bytes) + " of these drives: " + command + " lists them");
  return {};
}

std::unique_ptr<UnitParameters> make_cpu_unit_parameters(const BaseForm& form,
                                                         const ModelLayout& model,
                                                         offload::ParamOffloader& params,
                                                         const RankLink& ranks = {}) {
  return std::make_unique<CpuUnitParameters>(model, form, params, ranks);
}

}  // namespace

Result<RunDrives> open_drives(const config::Config& config, const MemoryPlan& plan,
                              aio::IoObserver* observer, Leftovers leftovers) {
  RunDrives drives;
  SLUICE_ASSIGN_OR_RETURN(drives.backend, make_run_backend(config));
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
  if (plan.nvme_bytes() == 0 || leftovers == Leftovers::kLeave) return drives;
  std::vector<std::string> paths = plan.params.options.store.paths;  // the base's as well
  paths.insert(paths.end(), plan.state.optimizer.store.paths.begin(),
               plan.state.optimizer.store.paths.end());
  if (plan.gradients) {
    const std::vector<std::string>& of_gradients = plan.gradients->store.paths;
    paths.insert(paths.end(), of_gradients.begin(), of_gradients.end());
  }
  const std::vector<std::string>& of_inputs = plan.activations.spill.store.paths;
  paths.insert(paths.end(), of_inputs.begin(), of_inputs.end());
  SLUICE_RETURN_IF_ERROR(clear_leftovers(*drives.reads, paths));
  return drives;
}

Result<RunDrives> open_drives_in_turn(const config::Config& config, const MemoryPlan& plan,
                                      const RankLink& ranks, aio::IoObserver* observer) {
  const bool is_alone = ranks.is_alone();
  const bool is_first = is_alone || ranks.link->rank(ProcessGroup::kNode) == 0;
  if (!is_first) SLUICE_RETURN_IF_ERROR(ranks.link->barrier(ProcessGroup::kNode));
  SLUICE_ASSIGN_OR_RETURN(
      RunDrives drives,
      open_drives(config, plan, observer, is_first ? Leftovers::kRemove : Leftovers::kLeave));
  if (is_first && !is_alone) SLUICE_RETURN_IF_ERROR(ranks.link->barrier(ProcessGroup::kNode));
  return drives;
}

Status GpuRanks::connect(const MemoryPlan& plan, RankLink& ranks) {
  if (ranks.is_alone() || !plan.cuda) return {};
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
  return offload::ParamOffloader::create(
      *plan.gradients,
      {.reads = drives.reads.get(), .writes = drives.writes.get(), .executor = nullptr});
}

Result<std::unique_ptr<GradientSink>> make_gradient_sink(const MemoryPlan& plan,
                                                         const ModelLayout& model,
                                                         const GradientParts& parts) {
  if (plan.cuda) return make_cuda_gradient_sink(model, sink_options(plan), parts.link, parts.trace);
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
                                  ranks);
}

Result<std::unique_ptr<UnitParameters>> make_base_unit_parameters(
    const MemoryPlan& plan, const ModelLayout& base, offload::ParamOffloader& params,
    const RankLink& ranks, CudaRankLink* link, TraceLog* trace) {
  const bool is_sharded = plan.base->form.is_sharded();
  if (plan.cuda)
    return make_cuda_unit_parameters(base, base_slot_options(plan), params,
                                     is_sharded ? link : nullptr, trace);
  return make_cpu_unit_parameters(plan.base->form, base, params, is_sharded ? ranks : RankLink());
}

}  // namespace sluice::engine
