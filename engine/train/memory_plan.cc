#include "engine/train/memory_plan.h"

#include <ATen/Context.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "aio/units.h"
#include "engine/model/gpt_costs.h"
#include "engine/model/kv_cache.h"
#include "engine/train/cuda_device.h"
#include "engine/train/gradient_sink.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kRecordGranule = offload::kTileElements;
constexpr int kMinSwapBuffers = 3;   // one is read, one computed, one written
constexpr int kMinCacheBuffers = 3;  // of a size class: updated, read, read ahead

// What is resident before anything of the run is there, and what LibTorch's libraries keep.
constexpr std::uint64_t kProgramBytes = 512 * kMiB;
constexpr std::uint64_t kCudaProgramBytes = 1536 * kMiB;

std::uint64_t sum_of(const std::vector<MemoryLine>& lines) {
  return std::accumulate(
      lines.begin(), lines.end(), std::uint64_t{0},
      [](std::uint64_t sum, const MemoryLine& line) { return sum + line.bytes; });
}

Status choose_device(const config::Config& config, MemoryPlan& plan) {
  const bool there = at::hasCUDA();
  if (config.run.device == config::Device::kCuda && !there) {
    return Error(ErrorCode::kInvalidArgument,
                 "run.device is \"cuda\", and LibTorch finds no GPU that it can use: check "
                 "nvidia-smi, or train on the CPU (run.device: \"cpu\")");
  }
  plan.cuda = there && config.run.device != config::Device::kCpu;
  plan.block_slots =
      static_cast<int>(std::clamp<std::int64_t>(config.placement.prefetch_units, 1, 64)) + 2;
  return {};
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

offload::UnitSpec unit_spec(const UnitLayout& layout) {
  offload::UnitSpec unit{.name = layout.name, .ranges = {}};
  for (const int group : {kDecayed, kUndecayed}) {
    const std::uint64_t elements = layout.elements_of_group(group);
    if (elements > 0) unit.ranges.push_back({.group = group, .elements = elements});
  }
  return unit;
}

offload::TierFractions optimizer_fractions(const config::Config& config) {
  if (config.placement.optimizer_fractions) {
    const config::TierFractions& f = *config.placement.optimizer_fractions;
    return {.gpu = f.gpu, .cpu = f.cpu, .nvme = f.nvme};
  }
  if (config.zero.offload_optimizer.device == config::OffloadDevice::kNvme)
    return {.gpu = 0, .cpu = 0, .nvme = 1};
  return {.gpu = 0, .cpu = 1, .nvme = 0};
}

// A name for the run's folders on the NVMe paths: the same for the same run directory, and another
// one for another.
std::string store_name(const config::Config& config, const char* what) {
  std::string name;
  for (const char letter : config.run.dir) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') || letter == '-' || letter == '_';
    name += plain ? letter : '-';
  }
  // The end of a path tells more than its beginning.
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

Status plan_params(const config::Config& config, const GptModel& model, MemoryPlan& plan) {
  const config::Zero& zero = config.zero;
  const bool on_nvme = zero.offload_param.device == config::OffloadDevice::kNvme;
  std::uint64_t largest = 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    const bool persistent = layout.elements <= static_cast<std::uint64_t>(std::max<std::int64_t>(
                                                   zero.param_persistence_threshold_elements, 0));
    const offload::Tier tier = on_nvme && !persistent ? offload::Tier::kNvme : offload::Tier::kCpu;
    if (tier == offload::Tier::kNvme) largest = std::max(largest, layout.elements);
    plan.params.units.push_back({.name = layout.name, .elements = layout.elements, .tier = tier});
  }
  plan.params.element_bytes = offload::param_bytes_per_element(plan.form);
  const std::int64_t in_cpu =
      largest == 0 ? kMinCacheBuffers
                   : zero.offload_param.max_in_cpu_elements / static_cast<std::int64_t>(largest);
  plan.params.cache_buffers = static_cast<int>(
      std::clamp<std::int64_t>(std::min(zero.offload_param.buffer_count, in_cpu), kMinCacheBuffers,
                               offload::ParamLayout::kMaxBuffers));
  plan.params.store.paths = config.param_nvme_paths();
  // Weights may be used while the run that makes them goes on.
  plan.params.store.run = store_name(config, store_suffix(plan.purpose));
  SLUICE_ASSIGN_OR_RETURN(const auto memory, offload::ParamOffloader::memory_plan(plan.params));
  plan.host.push_back({"parameters in memory", memory.cpu_bytes});
  plan.host.push_back({"parameters, cache of those on NVMe", memory.buffer_bytes});
  plan.nvme.push_back({"parameters", memory.nvme_bytes});
  return {};
}

Status plan_optimizer(const config::Config& config, const GptModel& model, MemoryPlan& plan) {
  plan.optimizer.form = plan.form;
  plan.optimizer.grad_type = plan.grad_type;
  plan.optimizer.isa = offload::best_isa();
  for (int unit = 0; unit < model.units(); ++unit)
    plan.optimizer.units.push_back(unit_spec(model.layout(unit)));
  SLUICE_ASSIGN_OR_RETURN(
      plan.optimizer.placement,
      offload::place_by_fractions(
          plan.optimizer.units,
          static_cast<std::uint64_t>(std::max<std::int64_t>(config.zero.sub_group_elements, 1)),
          optimizer_fractions(config)));
  const std::uint64_t asked = static_cast<std::uint64_t>(
      config.placement.record_elements > 0 ? config.placement.record_elements : 16 << 20);
  plan.optimizer.record_elements =
      std::clamp(align_down(asked, kRecordGranule), kRecordGranule, std::uint64_t{16} << 20);
  const std::int64_t buffers = config.placement.swap_buffers > 0
                                   ? config.placement.swap_buffers
                                   : config.zero.offload_optimizer.buffer_count;
  plan.optimizer.swap.buffers = static_cast<int>(
      std::clamp<std::int64_t>(buffers, kMinSwapBuffers, swap::SwapPipeline::kMaxBuffers));
  plan.optimizer.store.paths = config.optimizer_nvme_paths();
  plan.optimizer.store.run = store_name(config, "optimizer");
  SLUICE_ASSIGN_OR_RETURN(const auto memory,
                          offload::OptimizerOffloader::memory_plan(plan.optimizer));
  plan.host.push_back({"optimizer state in memory", memory.cpu_state_bytes});
  plan.host.push_back({"optimizer state, buffers of what is on NVMe", memory.swap_buffer_bytes});
  plan.nvme.push_back({"optimizer state", memory.nvme_bytes});
  return {};
}

// Evaluated together, in an evaluation on its own: as many micro-batches as have this much between
// two units. More would fetch parameters less often; this much hides a drive behind a GPU.
constexpr std::uint64_t kEvaluationFlowBytes = 256 * kMiB;

// Boundaries of all micro-batches between forward and backward, and what one call works with. An
// evaluation during training goes with the former.
std::uint64_t plan_activations(const config::Config& config, const GptModel& model,
                               MemoryPlan& plan) {
  const GptShape& shape = model.shape();
  const bool generates = plan.purpose == RunPurpose::kGeneration;
  const PassShape pass{.micro_batch = generates ? 1 : config.batch.micro,
                       .tokens = config.data.sequence_tokens,
                       .number_bytes = plan.form == offload::ParamForm::kFp32 ? 4 : 2};
  const PeakOptions peak{.cpu = !plan.cuda, .plain_attention = !plan.cuda && shape.dropout > 0};
  const auto micro_batches = static_cast<std::uint64_t>(config.batch.accumulation);
  const auto layers = static_cast<std::uint64_t>(shape.layers);
  const std::uint64_t boundary = boundary_bytes(shape, pass);
  const std::uint64_t call =
      std::max(block_peak_bytes(shape, pass, peak), head_peak_bytes(shape, pass, 0, peak));
  if (generates) return boundary + call;
  if (plan.purpose == RunPurpose::kEvaluation) {
    const auto asked =
        static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1));
    plan.evaluation_micro_batches =
        std::clamp<std::uint64_t>(kEvaluationFlowBytes / boundary, 1, asked);
    return plan.evaluation_micro_batches * boundary + call;
  }
  plan.evaluation_micro_batches = layers * micro_batches;
  std::uint64_t bytes = (layers + 2) * micro_batches * boundary;
  if (!plan.recompute) bytes += layers * micro_batches * block_saved_bytes(shape, pass);
  return bytes + call;
}

}  // namespace

std::uint64_t MemoryPlan::host_bytes() const { return sum_of(host); }
std::uint64_t MemoryPlan::gpu_bytes() const { return sum_of(gpu); }
std::uint64_t MemoryPlan::nvme_bytes() const { return sum_of(nvme); }

GptShape gpt_shape(const config::Model& model) {
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .context_tokens = model.context_tokens,
          .vocab = model.vocab,
          .dropout = model.dropout,
          .ffn_hidden = model.ffn_hidden()};
}

GptShape generation_shape(const config::Config& config) {
  GptShape shape = gpt_shape(config.model);
  shape.context_tokens = std::min(shape.context_tokens, config.data.sequence_tokens);
  return shape;
}

Result<MemoryPlan> plan_memory(const config::Config& config, const GptModel& model,
                               const PlanOptions& options) {
  MemoryPlan plan;
  plan.purpose = options.purpose;
  SLUICE_RETURN_IF_ERROR(choose_device(config, plan));
  // On the CPU they are there anyway.
  if (plan.cuda && config.placement.boundaries_to_cpu == config::Switch::kOn) {
    return Error(ErrorCode::kUnsupported,
                 "placement.boundaries_to_cpu cannot be \"on\" yet: leave it out, or take smaller "
                 "micro-batches (train_micro_batch_size_per_gpu)");
  }
  choose_types(config, plan);
  plan.recompute = config.placement.recompute != config::Switch::kOff;
  SLUICE_RETURN_IF_ERROR(plan_params(config, model, plan));
  const bool trains = options.purpose == RunPurpose::kTraining;
  if (trains) SLUICE_RETURN_IF_ERROR(plan_optimizer(config, model, plan));
  plan.host.push_back({"the program and LibTorch", plan.cuda ? kCudaProgramBytes : kProgramBytes});
  std::vector<MemoryLine>& compute = plan.cuda ? plan.gpu : plan.host;
  compute.push_back({"activations", plan_activations(config, model, plan)});
  if (options.purpose == RunPurpose::kGeneration) {
    const std::uint64_t number_bytes = plan.form == offload::ParamForm::kFp32 ? 4 : 2;
    compute.push_back({"keys and values", KvCache::bytes(generation_shape(config), number_bytes)});
  }
  if (!plan.cuda) {
    if (!trains) return plan;
    plan.host.push_back({"gradients", CpuGradientSink::planned_bytes(model, plan.grad_type)});
    return plan;
  }
  plan.params.hook = cuda_pin_hook();
  if (trains) plan.host.push_back({"gradients", planned_sink_host_bytes(model, plan.grad_type)});
  const at::ScalarType dtype = plan.form == offload::ParamForm::kFp32 ? at::kFloat : at::kHalf;
  plan.gpu.push_back(
      {"parameters, slots",
       planned_slot_bytes(model, {.dtype = dtype, .block_slots = plan.block_slots})});
  if (trains) plan.gpu.push_back({"gradients", planned_sink_gpu_bytes(model, plan.grad_type)});
  return plan;
}

}  // namespace sluice::engine
