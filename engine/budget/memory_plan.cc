#include "engine/budget/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "aio/units.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/budget/param_plan.h"
#include "engine/budget/state_plan.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kRecordGranule = offload::kTileElements;
constexpr int kMinSwapBuffers = 3;  // one is read, one computed, one written

// What is resident before any part of the run exists, and what LibTorch's libraries keep. On the
// CPU a model of 28,000 parameters trains in 377 MiB (366 after set-up, 384 with 16 threads): half
// are pages of LibTorch's libraries that loading has relocated or initialisers have written, half
// are mapped from their files. The rest is for allocators' arenas and oneDNN's scratch memory.
constexpr std::uint64_t kProgramBytes = 512 * kMiB;
// With CUDA 448 MiB are resident once its context is there, and what the driver and cuBLAS keep on
// the host as kernels are loaded comes on top, more in some runs than in others: 850 to 970 MiB in
// total where a run takes 1.8 to 25 GiB, and 1030 where it takes 110 and pins 45 of them.
constexpr std::uint64_t kCudaProgramBytes = 928 * kMiB;
// On the GPU: cuBLAS' workspaces, kernels as they are loaded, what LibTorch's allocator rounds up.
constexpr std::uint64_t kCudaLibraryBytes = 256 * kMiB;

std::uint64_t sum_of(const std::vector<MemoryLine>& lines) {
  return std::accumulate(
      lines.begin(), lines.end(), std::uint64_t{0},
      [](std::uint64_t sum, const MemoryLine& line) { return sum + line.bytes; });
}

void choose_types(const config::Config& config, MemoryPlan& plan) {
  switch (config.precision) {
    case config::Precision::kBf16:
      plan.form = offload::ParamForm::kSplit;
      plan.grad_type = offload::GradType::kBf16;
      return;
    case config::Precision::kFp16:
      plan.form = offload::ParamForm::kFp32AndFp16;
      plan.grad_type = offload::GradType::kFp16;
      return;
    case config::Precision::kFp32:
      plan.form = offload::ParamForm::kFp32;
      plan.grad_type = offload::GradType::kFp32;
      return;
  }
}

// A name for the run's folders on the NVMe paths: the same for the same run directory, different
// for a different one.
std::string store_name(const config::Config& config, const char* what) {
  std::string name;
  for (const char letter : config.run.dir) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
    name += plain ? letter : '-';
  }
  // The end of a path is more telling than its beginning.
  constexpr std::size_t kMostOfThePath = 28;
  if (name.size() > kMostOfThePath) name = name.substr(name.size() - kMostOfThePath);
  std::uint64_t hash = 1469598103934665603U;
  for (const char letter : config.run.dir)
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  return "run" + name + "-" + std::to_string(hash % 1'000'000'000) + "-" + what;
}

const char* store_suffix(RunPurpose purpose) {
  switch (purpose) {
    case RunPurpose::kEvaluation:
      return "evaluation";
    case RunPurpose::kGeneration:
      return "generation";
    case RunPurpose::kTraining:
      break;
  }
  return "params";
}

Status plan_params(const config::Config& config, const ModelLayout& model,
                   const PlanOptions& options, MemoryPlan& plan) {
  place_params(config.zero, model, options.places, plan);
  plan.params.element_bytes = offload::param_bytes_per_element(plan.form);
  plan.params.store.paths = config.param_nvme_paths();
  plan.params.store.weights = stripe_weights(config, options.nvme_weights);
  // Weights may be used while the run that makes them continues.
  plan.params.store.run = store_name(config, store_suffix(plan.purpose));
  plan.params.store.label = "parameters";
  SLUICE_ASSIGN_OR_RETURN(const auto memory, offload::ParamOffloader::memory_plan(plan.params));
  plan.host.push_back(
      {"parameters in memory", MemoryUse::kParameters, memory.cpu_bytes, /*locked=*/true});
  plan.host.push_back({"parameters, cache of those on NVMe", MemoryUse::kParameters,
                       memory.buffer_bytes, /*locked=*/true});
  plan.nvme.push_back({.what = "parameters",
                       .use = MemoryUse::kParameters,
                       .bytes = memory.nvme_bytes,
                       .paths = bytes_on_paths(plan.params.store, memory.nvme_bytes)});
  return {};
}

Status plan_optimizer(const config::Config& config, const PlanOptions& options, MemoryPlan& plan) {
  plan.optimizer.form = plan.form;
  plan.optimizer.grad_type = plan.grad_type;
  plan.optimizer.isa = offload::best_isa();
  const std::uint64_t asked = static_cast<std::uint64_t>(
      config.placement.record_elements > 0 ? config.placement.record_elements : 16 << 20);
  plan.optimizer.record_elements =
      std::clamp(align_down(asked, kRecordGranule), kRecordGranule, std::uint64_t{16} << 20);
  const std::int64_t buffers = config.placement.swap_buffers > 0
                                   ? config.placement.swap_buffers
                                   : config.zero.offload_optimizer.buffer_count;
  if (buffers < kMinSwapBuffers && is_used(plan, offload::Tier::kNvme)) {
    note_raised(plan, "offload_optimizer.buffer_count", buffers,
                "one record each that is read, computed and written", kMinSwapBuffers);
  }
  plan.optimizer.swap.buffers = static_cast<int>(
      std::clamp<std::int64_t>(buffers, kMinSwapBuffers, swap::SwapPipeline::kMaxBuffers));
  plan.optimizer.store.paths = config.optimizer_nvme_paths();
  plan.optimizer.store.weights = stripe_weights(config, options.nvme_weights);
  plan.optimizer.store.run = store_name(config, "optimizer");
  plan.optimizer.store.label = "optimizer state";
  SLUICE_ASSIGN_OR_RETURN(const auto memory,
                          offload::OptimizerOffloader::memory_plan(plan.optimizer));
  plan.state_bytes_on_gpu = memory.gpu_state_bytes;
  plan.host.push_back({"optimizer state in memory", MemoryUse::kState, memory.cpu_state_bytes});
  plan.host.push_back({"optimizer state, buffers of what is on NVMe", MemoryUse::kState,
                       memory.swap_buffer_bytes,
                       /*locked=*/true});
  plan.host.push_back(
      {"optimizer state, while it is set or saved", MemoryUse::kState, memory.transfer_bytes});
  plan.nvme.push_back({.what = "optimizer state",
                       .use = MemoryUse::kState,
                       .bytes = memory.nvme_bytes,
                       .paths = bytes_on_paths(plan.optimizer.store, memory.nvme_bytes)});
  return {};
}

// One is in use, one just used, the others are being copied into.
int ring_blocks(const config::Config& config) {
  constexpr std::int64_t kMostAhead = 64;
  return static_cast<int>(
             std::clamp<std::int64_t>(config.placement.prefetch_units, 1, kMostAhead)) +
         2;
}

// Of the units' inputs; on the CPU they are in host memory anyway.
void plan_unit_inputs(const config::Config& config, const ModelLayout& model,
                      std::span<const offload::UnitPlacement> places, MemoryPlan& plan) {
  if (!plan.cuda) return;
  const auto slots = unit_inputs_on_gpu(config.placement, places, ring_blocks(config));
  if (!slots) return;
  plan.unit_inputs = UnitInputOptions{.micro_batches = config.batch.accumulation,
                                      .micro_batch = config.batch.micro,
                                      .tokens = config.data.sequence_tokens,
                                      .type = offload::compute_type(plan.form),
                                      .slots = *slots};
  plan.host.push_back({"unit inputs", MemoryUse::kUnitInputs,
                       UnitInputPlan(model, *plan.unit_inputs).host_bytes(),
                       /*locked=*/true});
}

// Evaluated together, in an evaluation on its own: as many micro-batches as amount to this much
// between two units. More would fetch parameters less often; this much hides a drive behind a GPU.
constexpr std::uint64_t kEvaluationFlowBytes = 256 * kMiB;

// Unit inputs of all micro-batches between forward and backward, and what one call works with. An
// evaluation during training uses the memory of units' inputs.
std::uint64_t plan_activations(const config::Config& config, const ModelLayout& model,
                               MemoryPlan& plan) {
  const bool generates = plan.purpose == RunPurpose::kGeneration;
  const PassShape pass{.micro_batch = generates ? 1 : config.batch.micro,
                       .tokens = config.data.sequence_tokens,
                       .number_bytes = offload::param_bytes_per_element(plan.form)};
  const PeakOptions peak{.cpu = !plan.cuda, .deterministic = config.run.deterministic};
  const auto micro_batches = static_cast<std::uint64_t>(config.batch.accumulation);
  const auto blocks = static_cast<std::uint64_t>(model.blocks());
  const std::uint64_t unit_input = model.unit_input_bytes(pass);
  const std::uint64_t call = model.peak_bytes(pass, peak);
  if (generates) return unit_input + call;
  if (plan.purpose == RunPurpose::kEvaluation) {
    const auto asked =
        static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1));
    plan.evaluation_micro_batches =
        std::clamp<std::uint64_t>(kEvaluationFlowBytes / unit_input, 1, asked);
    return plan.evaluation_micro_batches * unit_input + call;
  }
  std::uint64_t bytes = 2 * micro_batches * unit_input;  // what flows from unit to unit
  if (plan.unit_inputs) {
    plan.evaluation_micro_batches = micro_batches;
    bytes += UnitInputPlan(model, *plan.unit_inputs).gpu_bytes();
  } else {
    plan.evaluation_micro_batches = blocks * micro_batches;
    bytes += blocks * micro_batches * unit_input;
  }
  for (std::size_t unit = 0; unit < plan.keeps_activations.size(); ++unit)
    if (plan.keeps_activations[unit])
      bytes += micro_batches * model.kind(static_cast<int>(unit)).saved_bytes(pass);
  return bytes + call;
}

}  // namespace

std::uint64_t MemoryPlan::host_bytes() const { return sum_of(host); }
std::uint64_t MemoryPlan::locked_bytes() const {
  std::uint64_t sum = 0;
  for (const MemoryLine& line : host) sum += line.locked ? line.bytes : 0;
  return sum;
}
std::uint64_t MemoryPlan::gpu_bytes() const { return sum_of(gpu); }
std::uint64_t MemoryPlan::nvme_bytes() const { return sum_of(nvme); }

std::vector<PathBytes> MemoryPlan::nvme_paths() const {
  std::vector<PathBytes> all;
  for (const MemoryLine& line : nvme) add_on_paths(line.paths, all);
  return all;
}

Result<MemoryPlan> plan_memory(const config::Config& config, const ModelLayout& model,
                               const PlanOptions& options) {
  MemoryPlan plan;
  plan.purpose = options.purpose;
  plan.cuda = options.on_gpu;
  choose_types(config, plan);
  const bool trains = options.purpose == RunPurpose::kTraining;
  if (trains) SLUICE_RETURN_IF_ERROR(place_state(config, model, options.places, plan));
  SLUICE_RETURN_IF_ERROR(plan_params(config, model, options, plan));
  if (trains) SLUICE_RETURN_IF_ERROR(plan_optimizer(config, options, plan));
  plan.host.push_back({"the program and LibTorch", MemoryUse::kOther,
                       plan.cuda ? kCudaProgramBytes : kProgramBytes});
  if (trains) plan_unit_inputs(config, model, options.places, plan);
  std::vector<MemoryLine>& compute = plan.cuda ? plan.gpu : plan.host;
  compute.push_back(
      {"activations", MemoryUse::kActivations, plan_activations(config, model, plan)});
  if (options.purpose == RunPurpose::kGeneration) {
    const std::uint64_t number_bytes = offload::element_bytes(offload::compute_type(plan.form));
    compute.push_back({"keys and values", MemoryUse::kOther,
                       model.kv_cache_bytes(generation_context(config), number_bytes)});
  }
  if (!plan.cuda) {
    if (trains)
      plan.host.push_back(
          {"gradients", MemoryUse::kOther, planned_cpu_sink_bytes(model, plan.grad_type)});
    plan_fetching(config, model, {}, plan);
    return plan;
  }
  plan.gpu.push_back({"optimizer state", MemoryUse::kState, plan.state_bytes_on_gpu});
  plan.gpu.push_back({"parameters that stay", MemoryUse::kParameters,
                      planned_resident_bytes(model, slot_options(plan))});
  if (trains) {
    plan.host.push_back(
        {"gradients", MemoryUse::kOther, planned_sink_host_bytes(model, sink_options(plan))});
    plan.gpu.push_back(
        {"gradients", MemoryUse::kOther, planned_sink_gpu_bytes(model, sink_options(plan))});
  }
  plan.gpu.push_back({"CUDA's context", MemoryUse::kOther, kCudaContextBytes});
  plan.gpu.push_back({"CUDA's libraries", MemoryUse::kOther, kCudaLibraryBytes});
  plan_fetching(config, model, options.gpu_room_bytes, plan);
  plan.gpu.push_back(
      {"parameters, slots", MemoryUse::kParameters, planned_slot_bytes(model, slot_options(plan))});
  return plan;
}

CudaSlotOptions slot_options(const MemoryPlan& plan) {
  return {.type = offload::compute_type(plan.form),
          .block_slots = plan.block_slots,
          .residency = plan.residency};
}

CudaSinkOptions sink_options(const MemoryPlan& plan) {
  return {.type = plan.grad_type, .residency = plan.residency};
}

}  // namespace sluice::engine
