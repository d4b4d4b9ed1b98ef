#include "engine/runtime/resources.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/observe/process_memory.h"
#include "engine/step/cuda_step.h"
#include "engine/step/spilled_inputs.h"

namespace sluice::engine {
namespace {

int threads_of(const config::Config& config, const Resources::Environment& environment) {
  if (environment.use == Resources::Use::kForward) return compute_threads(config);
  const int ranks = environment.link->world_size(ProcessGroup::kNode);
  // A launcher may have left LibTorch one thread (torchrun does). Work whose results do not depend
  // on the number of threads may use more.
  return environment.workers > 0 ? std::max(environment.workers / ranks, 1)
                                 : worker_threads(config, ranks);
}

void warn_of(const Status& removed) {
  if (!removed.ok()) log::warning(removed.error().message());
}

}  // namespace

Result<std::unique_ptr<Resources>> Resources::create(const config::Config& config,
                                                     const MemoryPlan& plan,
                                                     const ModelLayout& model,
                                                     const Environment& environment) {
  std::unique_ptr<Resources> made(new Resources(plan, model, *environment.link));
  SLUICE_CHECK(made->ranks_.link->world_size() == plan.ranks.world, "the plan's ranks have a link");
  SLUICE_RETURN_IF_ERROR(made->make_forward(config, environment));
  if (environment.use != Use::kForward) SLUICE_RETURN_IF_ERROR(made->make_training());
  if (environment.use == Use::kSteps) SLUICE_RETURN_IF_ERROR(made->make_unit_inputs());
  return made;
}

// The binding may hold a lease of a unit whose update failed, and the sink one of a unit whose
// backward failed.
Resources::~Resources() {
  if (optimizer_) static_cast<void>(optimizer_->drain());
  binding_.reset();
  if (parameters_) parameters_->end_passes();
  if (frozen_) frozen_->end_passes();
  unit_inputs_.reset();  // may be using the spill
  if (optimizer_) warn_of(optimizer_->remove());
  if (spill_) warn_of(spill_->remove());
  gradients_.reset();
  if (gradient_places_) warn_of(gradient_places_->remove());
}

// The configured cap includes the memory that CUDA and NCCL take outside LibTorch's allocator.
Status Resources::limit_gpu(const config::Config& config) const {
  if (!plan_.cuda) return {};
  // Adapters' passes need blocks of many more sizes. For Qwen3-8B with 8 x 2048 tokens in 24 GiB,
  // fragmentation took more than the plan leaves free.
  if (plan_.base) grow_cuda_segments();
  if (!config.budget.gpu_gib) return {};
  const auto cap = static_cast<std::uint64_t>(*config.budget.gpu_gib * kGiB);
  const std::uint64_t beside = kCudaContextBytes + nccl_bytes(ranks_.part.world);
  return limit_cuda_memory(cap > beside ? cap - beside : 0);
}

Status Resources::make_forward(const config::Config& config, const Environment& environment) {
  const bool trains = environment.use != Use::kForward;
  SLUICE_ASSIGN_OR_RETURN(
      drives_, open_drives(config, trains ? &io_trace_ : nullptr, environment.make_backend));
  SLUICE_RETURN_IF_ERROR(cuda_ranks_.connect(plan_, ranks_));
  if (trains) SLUICE_RETURN_IF_ERROR(limit_gpu(config));
  if (trains && plan_.cuda)
    gpu_monitor_ = std::make_unique<GpuMonitor>(GpuMonitor::Options{.bus_id = cuda_bus_id()});
  const int threads = threads_of(config, environment);
  if (trains) {
    SLUICE_ASSIGN_OR_RETURN(update_executor_, aio::make_executor(threads));
  }
  SLUICE_ASSIGN_OR_RETURN(gradient_executor_, aio::make_executor(threads));
  SLUICE_ASSIGN_OR_RETURN(
      parameters_, ModelParameters::create(plan_, model_,
                                           {.drives = &drives_,
                                            .executor = trains ? nullptr : gradient_executor_.get(),
                                            .base_executor = gradient_executor_.get(),
                                            .trace = &trace_,
                                            .ranks = ranks_,
                                            .cuda_ranks = cuda_ranks_.of_units()}));
  if (environment.frozen) {
    SLUICE_ASSIGN_OR_RETURN(
        frozen_, ModelParameters::create(*environment.frozen->plan, *environment.frozen->model,
                                         {.drives = &drives_}));
  }
  return {};
}

Status Resources::make_training() {
  if (plan_.state.gpu_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        gpu_tier_, make_cuda_state_tier(plan_.state.gpu_bytes, stream_of(cuda_ranks_.get())));
  }
  SLUICE_ASSIGN_OR_RETURN(optimizer_,
                          offload::OptimizerOffloader::create(optimizer_options(plan_),
                                                              {.reads = drives_.reads.get(),
                                                               .writes = drives_.writes.get(),
                                                               .executor = update_executor_.get(),
                                                               .device = gpu_tier_.get()}));
  SLUICE_ASSIGN_OR_RETURN(gradient_places_, make_gradient_places(plan_, drives_));
  SLUICE_ASSIGN_OR_RETURN(gradients_, make_gradient_sink(plan_, model_,
                                                         {.executor = gradient_executor_.get(),
                                                          .places = gradient_places_.get(),
                                                          .ranks = ranks_,
                                                          .link = cuda_ranks_.get(),
                                                          .trace = &trace_}));
  binding_ = std::make_unique<UnitBinding>(
      UnitBinding::Parts{&parameters_->trained(), &parameters_->units(), gradients_.get()},
      UnitBinding::Access::kUpdate, model_, &trace_);
  return {};
}

Status Resources::make_unit_inputs() {
  const ActivationPlan& plan = plan_.activations;
  if (!plan.spill.units.empty()) {
    SLUICE_ASSIGN_OR_RETURN(spill_, offload::InputSpill::create(spill_options(plan_),
                                                                {*drives_.reads, *drives_.writes}));
  }
  SpilledInputs spilled(plan, spill_.get());
  if (plan.unit_inputs) {
    SLUICE_ASSIGN_OR_RETURN(unit_inputs_, make_cuda_unit_input_store(model_, *plan.unit_inputs,
                                                                     std::move(spilled), &trace_));
  } else if (spill_ != nullptr) {
    unit_inputs_ = make_spilling_unit_input_store(model_, std::move(spilled));
  } else {
    unit_inputs_ = std::make_unique<PlainUnitInputStore>(model_.units());
  }
  clock_ = plan_.cuda ? make_cuda_phase_clock() : std::make_unique<CpuPhaseClock>();
  return {};
}

void Resources::expect_gradients(std::span<const int> order) {
  if (gradient_places_) expect_on_host(*gradient_places_, order);
}

Status Resources::drain() {
  SLUICE_RETURN_IF_ERROR(optimizer_->drain());
  return parameters_->trained().drain();
}

RunState Resources::state() const {
  return {.optimizer = optimizer_.get(),
          .params = &parameters_->trained(),
          .units = &parameters_->units(),
          .model = &model_,
          .ranks = ranks_.part};
}

Resources::Traffic Resources::traffic() const {
  const swap::SwapStats state = optimizer_->stats();
  const auto inputs = spill_ ? spill_->stats() : offload::InputSpill::Stats{};
  Traffic traffic{.nvme_read_bytes = state.bytes_read + inputs.bytes_read,
                  .nvme_write_bytes = state.bytes_written + inputs.bytes_written,
                  .h2d_bytes = parameters_->units().copied_bytes() + gradients_->fetched_bytes(),
                  .d2h_bytes = gradients_->copied_bytes()};
  const auto add = [&](const offload::ParamStats& stats) {
    traffic.nvme_read_bytes += stats.bytes_read;
    traffic.nvme_write_bytes += stats.bytes_written;
  };
  add(parameters_->stats());
  if (parameters_->base() != nullptr) add(parameters_->base()->stats());
  if (frozen_) add(frozen_->stats());
  if (gradient_places_) add(gradient_places_->stats());
  if (frozen_) traffic.h2d_bytes += frozen_->units().copied_bytes();
  if (unit_inputs_) {
    traffic.h2d_bytes += unit_inputs_->from_host_bytes();
    traffic.d2h_bytes += unit_inputs_->to_host_bytes();
  }
  return traffic;
}

// The pinned bytes are 0 if the kernel does not report them; the memory that a GPU's driver pins is
// not counted.
Resources::Memory Resources::memory() const {
  const auto asked = process_memory();
  const ProcessMemory memory = asked.ok() ? *asked : ProcessMemory();
  const std::uint64_t of_gpu = plan_.cuda ? cuda_pinned_bytes() : 0;
  return {.gpu_peak_bytes = plan_.cuda ? cuda_peak_bytes() : 0,
          .pinned_bytes = std::max(memory.pinned_bytes, of_gpu),
          .resident_bytes = memory.resident_bytes};
}

}  // namespace sluice::engine
