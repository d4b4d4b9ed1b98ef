#include "engine/train/memory_plan.h"

#include <ATen/Context.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "aio/units.h"
#include "engine/model/gpt_costs.h"
#include "engine/model/gpt_layout.h"
#include "engine/train/cuda_device.h"
#include "engine/train/fetch_limits.h"
#include "engine/train/gradient_sink.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kRecordGranule = offload::kTileElements;
constexpr int kMinSwapBuffers = 3;   // one is read, one computed, one written
constexpr int kMinCacheBuffers = 3;  // of a size class: updated, read, read ahead

// What is resident before anything of the run is there, and what LibTorch's libraries keep.
constexpr std::uint64_t kProgramBytes = 512 * kMiB;
constexpr std::uint64_t kCudaProgramBytes = 1536 * kMiB;
// On the GPU: cuBLAS' workspaces, kernels as they are loaded, what LibTorch's allocator rounds up.
constexpr std::uint64_t kCudaLibraryBytes = 256 * kMiB;

// Rows of the token embedding on the GPU: a multiple of this fills the tensor cores' tiles.
constexpr std::int64_t kVocabMultiple = 64;

std::uint64_t sum_of(const std::vector<MemoryLine>& lines) {
  return std::accumulate(
      lines.begin(), lines.end(), std::uint64_t{0},
      [](std::uint64_t sum, const MemoryLine& line) { return sum + line.bytes; });
}

bool uses_cuda(const config::Config& config) {
  return at::hasCUDA() && config.run.device != config::Device::kCpu;
}

Status choose_device(const config::Config& config, MemoryPlan& plan) {
  plan.cuda = uses_cuda(config);
  if (config.run.device == config::Device::kCuda && !plan.cuda) {
    return Error(ErrorCode::kInvalidArgument,
                 "run.device is \"cuda\", and LibTorch finds no GPU that it can use: check "
                 "nvidia-smi, or train on the CPU (run.device: \"cpu\")");
  }
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

// "zero_optimization.<key> 2 is below <what is needed>: raised to <that>".
void note_raised(MemoryPlan& plan, const std::string& key, std::int64_t given,
                 const std::string& needed, std::uint64_t raised_to) {
  plan.notes.push_back("zero_optimization." + key + " " + std::to_string(given) + " is below " +
                       needed + ": raised to " + std::to_string(raised_to));
}

// Which units are on NVMe; returns the elements of the largest of them.
std::uint64_t place_params(const config::Zero& zero, const GptModel& model, MemoryPlan& plan) {
  const bool on_nvme = zero.offload_param.device == config::OffloadDevice::kNvme;
  const auto limit = [](std::int64_t elements) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 0));
  };
  std::uint64_t persistent_left = limit(zero.model_persistence_threshold_elements);
  std::uint64_t largest = 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    const bool persistent =
        layout.elements <=
        std::min(limit(zero.param_persistence_threshold_elements), persistent_left);
    if (persistent) persistent_left -= layout.elements;
    const offload::Tier tier = on_nvme && !persistent ? offload::Tier::kNvme : offload::Tier::kCpu;
    if (tier == offload::Tier::kNvme) largest = std::max(largest, layout.elements);
    plan.params.units.push_back({.name = layout.name, .elements = layout.elements, .tier = tier});
  }
  return largest;
}

// Of each size class, for units of which the largest has so many elements. Buffers are as large as
// the units that they hold: a buffer_size beyond that would be memory that nothing uses.
void choose_param_buffers(const config::OffloadParam& asked, std::uint64_t largest,
                          MemoryPlan& plan) {
  plan.params.cache_buffers = kMinCacheBuffers;
  if (largest == 0) return;
  if (asked.buffer_elements < static_cast<std::int64_t>(largest)) {
    note_raised(plan, "offload_param.buffer_size", asked.buffer_elements,
                "the elements of the largest unit on NVMe", largest);
  }
  if (asked.buffer_count < kMinCacheBuffers) {
    note_raised(plan, "offload_param.buffer_count", asked.buffer_count,
                "one buffer each to read, to compute and to update", kMinCacheBuffers);
  }
  const std::int64_t in_cpu = asked.max_in_cpu_elements / static_cast<std::int64_t>(largest);
  if (in_cpu < kMinCacheBuffers) {
    note_raised(plan, "offload_param.max_in_cpu", asked.max_in_cpu_elements,
                "what " + std::to_string(kMinCacheBuffers) + " buffers of the largest unit hold",
                kMinCacheBuffers * largest);
  }
  plan.params.cache_buffers = static_cast<int>(std::clamp<std::int64_t>(
      std::min(asked.buffer_count, in_cpu), kMinCacheBuffers, offload::ParamLayout::kMaxBuffers));
}

Status plan_params(const config::Config& config, const GptModel& model, MemoryPlan& plan) {
  const std::uint64_t largest = place_params(config.zero, model, plan);
  choose_param_buffers(config.zero.offload_param, largest, plan);
  plan.params.element_bytes = offload::param_bytes_per_element(plan.form);
  plan.params.store.paths = config.param_nvme_paths();
  plan.params.store.run = store_name(config, "params");
  SLUICE_ASSIGN_OR_RETURN(const auto memory, offload::ParamOffloader::memory_plan(plan.params));
  plan.host.push_back({"parameters in memory", memory.cpu_bytes, /*locked=*/true});
  plan.host.push_back({"parameters, cache of those on NVMe", memory.buffer_bytes, /*locked=*/true});
  plan.nvme.push_back({"parameters", memory.nvme_bytes});
  return {};
}

FetchRequest fetch_request(const config::Config& config) {
  return {.prefetch_units = config.placement.prefetch_units,
          .prefetch_bucket_elements = config.zero.prefetch_bucket_elements,
          .max_live_elements = config.zero.max_live_elements,
          .max_reuse_distance_elements = config.zero.max_reuse_distance_elements};
}

UnitSizes unit_sizes(const GptModel& model) {
  return {.embedding_elements = model.layout(0).elements,
          .block_elements = model.layout(1).elements,
          .head_elements = model.layout(model.head_index()).elements,
          .blocks = model.head_index() - 1};
}

std::uint64_t slot_bytes(const GptModel& model, const MemoryPlan& plan, int block_slots) {
  const at::ScalarType dtype = plan.form == offload::ParamForm::kFp32 ? at::kFloat : at::kHalf;
  return planned_slot_bytes(model, {.dtype = dtype, .block_slots = block_slots});
}

// As many slots as fit beside everything else that `plan` has on the GPU.
void fit_slots(std::uint64_t room_bytes, const GptModel& model, MemoryPlan& plan,
               FetchLimits& limits) {
  const int wanted = limits.block_slots;
  const std::uint64_t all = slot_bytes(model, plan, wanted);
  const std::uint64_t needed = plan.gpu_bytes() + all;
  if (needed <= room_bytes) return;
  const std::uint64_t one = all - slot_bytes(model, plan, wanted - 1);
  const std::uint64_t too_many = (needed - room_bytes + one - 1) / one;
  const auto wanted_slots = static_cast<std::uint64_t>(wanted);
  lower_block_slots(limits, model.head_index() - 1,
                    static_cast<int>(wanted_slots - std::min(too_many, wanted_slots)));
  if (limits.block_slots == wanted) return;
  plan.notes.push_back("zero_optimization.stage3_max_live_parameters and its neighbours ask for " +
                       std::to_string(wanted) + " blocks on the GPU, where " +
                       std::to_string(limits.block_slots) +
                       " fit: the others are fetched again for backward");
}

// From NVMe, units come to the host one ahead of those that are copied to the GPU.
void plan_fetching(const config::Config& config, const GptModel& model,
                   std::optional<std::uint64_t> gpu_room_bytes, MemoryPlan& plan) {
  const UnitSizes sizes = unit_sizes(model);
  const FetchRequest request = fetch_request(config);
  FetchLimits limits = plan.cuda ? fetch_limits(sizes, request) : host_fetch_limits(sizes, request);
  if (plan.cuda && gpu_room_bytes) fit_slots(*gpu_room_bytes, model, plan, limits);
  plan.prefetch_units = limits.prefetch_units;
  plan.block_slots = limits.block_slots;
  const bool from_nvme = !plan.nvme.empty() && plan.nvme.front().bytes > 0;
  plan.params.read_ahead = limits.prefetch_units + (plan.cuda ? 1 : 0);
  if (plan.cuda || from_nvme)
    plan.notes.insert(plan.notes.end(), limits.raised.begin(), limits.raised.end());
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
  if (buffers < kMinSwapBuffers && optimizer_fractions(config).nvme > 0) {
    note_raised(plan, "offload_optimizer.buffer_count", buffers,
                "one record each that is read, computed and written", kMinSwapBuffers);
  }
  plan.optimizer.swap.buffers = static_cast<int>(
      std::clamp<std::int64_t>(buffers, kMinSwapBuffers, swap::SwapPipeline::kMaxBuffers));
  plan.optimizer.store.paths = config.optimizer_nvme_paths();
  plan.optimizer.store.run = store_name(config, "optimizer");
  SLUICE_ASSIGN_OR_RETURN(const auto memory,
                          offload::OptimizerOffloader::memory_plan(plan.optimizer));
  plan.host.push_back({"optimizer state in memory", memory.cpu_state_bytes});
  plan.host.push_back({"optimizer state, buffers of what is on NVMe", memory.swap_buffer_bytes,
                       /*locked=*/true});
  plan.nvme.push_back({"optimizer state", memory.nvme_bytes});
  return {};
}

std::int64_t token_rows(const GptModel& model) {
  return model.layout(0).parameters[embedding_parameter::kToken].padded_rows;
}

// Boundaries of all micro-batches between forward and backward, and what one call works with.
std::uint64_t activation_bytes(const config::Config& config, const GptModel& model,
                               const MemoryPlan& plan) {
  const GptShape& shape = model.shape();
  const PassShape pass{.micro_batch = config.batch.micro,
                       .tokens = config.data.sequence_tokens,
                       .number_bytes = plan.form == offload::ParamForm::kFp32 ? 4 : 2};
  const PeakOptions peak{.cpu = !plan.cuda, .plain_attention = !plan.cuda && shape.dropout > 0};
  const auto micro_batches = static_cast<std::uint64_t>(config.batch.accumulation);
  const auto layers = static_cast<std::uint64_t>(shape.layers);
  std::uint64_t bytes = (layers + 2) * micro_batches * boundary_bytes(shape, pass);
  if (!plan.recompute) bytes += layers * micro_batches * block_saved_bytes(shape, pass);
  return bytes + std::max(block_peak_bytes(shape, pass, peak),
                          head_peak_bytes(shape, pass, token_rows(model), peak));
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

GptShape gpt_shape(const config::Model& model) {
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .context_tokens = model.context_tokens,
          .vocab = model.vocab,
          .dropout = model.dropout,
          .ffn_hidden = model.ffn_hidden()};
}

GptModel::Options model_options(const config::Config& config) {
  GptModel::Options options{.shape = gpt_shape(config.model)};
  if (uses_cuda(config) && config.precision != config::Precision::kFp32) {
    const std::int64_t more = options.shape.vocab % kVocabMultiple;
    options.padded_vocab = options.shape.vocab + (more == 0 ? 0 : kVocabMultiple - more);
  }
  return options;
}

Result<MemoryPlan> plan_memory(const config::Config& config, const GptModel& model,
                               std::optional<std::uint64_t> gpu_room_bytes) {
  if (config.placement.boundaries_to_cpu == config::Switch::kOn) {
    return Error(ErrorCode::kUnsupported,
                 "placement.boundaries_to_cpu cannot be \"on\" yet: leave it out, or take smaller "
                 "micro-batches (train_micro_batch_size_per_gpu)");
  }
  MemoryPlan plan;
  SLUICE_RETURN_IF_ERROR(choose_device(config, plan));
  choose_types(config, plan);
  plan.recompute = config.placement.recompute != config::Switch::kOff;
  SLUICE_RETURN_IF_ERROR(plan_params(config, model, plan));
  SLUICE_RETURN_IF_ERROR(plan_optimizer(config, model, plan));
  plan.host.push_back({"the program and LibTorch", plan.cuda ? kCudaProgramBytes : kProgramBytes});
  std::vector<MemoryLine>& compute = plan.cuda ? plan.gpu : plan.host;
  compute.push_back({"activations", activation_bytes(config, model, plan)});
  if (!plan.cuda) {
    plan.host.push_back({"gradients", CpuGradientSink::planned_bytes(model, plan.grad_type)});
    plan_fetching(config, model, {}, plan);
    return plan;
  }
  plan.params.hook = cuda_pin_hook();
  plan.host.push_back({"gradients", planned_sink_host_bytes(model, plan.grad_type)});
  plan.gpu.push_back({"gradients", planned_sink_gpu_bytes(model, plan.grad_type)});
  plan.gpu.push_back({"CUDA's context", kCudaContextBytes});
  plan.gpu.push_back({"CUDA's libraries", kCudaLibraryBytes});
  plan_fetching(config, model, gpu_room_bytes, plan);
  plan.gpu.push_back({"parameters, slots", slot_bytes(model, plan, plan.block_slots)});
  return plan;
}

}  // namespace sluice::engine
