#include "engine/plan/planner_input.h"

#include <algorithm>

#include "aio/units.h"
#include "engine/budget/state_plan.h"
#include "engine/model/zeroed_ranges.h"
#include "offload/planner/placement_fit.h"
#include "offload/state/gpu_state.h"

namespace sluice::engine {
namespace {

using config::OffloadDevice;
using offload::TierBytes;

// In any placement; measured by planner_input_test.
constexpr std::uint64_t kSpareGpuBytes = 256 * kKiB;
constexpr std::uint64_t kSpareHostBytes = 512 * kKiB;
constexpr std::uint64_t kSpareDriveBytes = 4 * kMiB;

struct Widths {
  double param = 2;
  double grad = 2;
  double state = 10;  // besides the parameter
};

Widths widths_of(const MemoryPlan& plan) {
  switch (plan.form) {
    case offload::ParamForm::kSplit:
      return {};
    case offload::ParamForm::kFp32AndFp16:
      return {.param = 2, .grad = 2, .state = 12};
    case offload::ParamForm::kFp32:
      break;
  }
  return {.param = 4, .grad = 4, .state = 8};
}

std::optional<offload::Tier> tier_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kNone:
      return offload::Tier::kGpu;
    case OffloadDevice::kCpu:
      return offload::Tier::kCpu;
    case OffloadDevice::kNvme:
      return offload::Tier::kNvme;
    case OffloadDevice::kAuto:
      break;
  }
  return std::nullopt;
}

// The tiers of each unit's state, as a run cuts them.
std::vector<offload::TierElements> state_of(const MemoryPlan& plan) {
  std::vector<offload::TierElements> units(plan.optimizer.units.size());
  for (const offload::SubGroup& it : plan.optimizer.placement) {
    offload::TierElements& unit = units[static_cast<std::size_t>(it.unit)];
    const bool on_gpu = it.tier == offload::Tier::kGpu;
    (on_gpu ? unit.gpu : it.tier == offload::Tier::kCpu ? unit.cpu : unit.nvme) += it.elements;
  }
  return units;
}

offload::PlacementRules rules_of(const config::Config& config, const MemoryPlan& sizes) {
  const bool on_gpu = sizes.cuda;
  offload::PlacementRules rules;
  if (asked_fractions(config, on_gpu)) rules.state = state_of(sizes);
  rules.state_on_gpu = on_gpu;
  rules.state_on_nvme = !config.optimizer_nvme_paths().empty();
  rules.params_on_nvme = !config.param_nvme_paths().empty();
  rules.params = tier_of(config.zero.offload_param.device);
  if (!on_gpu && rules.params == offload::Tier::kGpu) rules.params = offload::Tier::kCpu;
  rules.recompute = config.placement.recompute;
  rules.boundaries_to_cpu = config.placement.boundaries_to_cpu;
  if (!on_gpu) {  // any activations are in RAM anyway
    rules.recompute = Tristate::kOn;
    rules.boundaries_to_cpu = Tristate::kOff;
  } else if (rules.boundaries_to_cpu == Tristate::kOn && rules.recompute == Tristate::kAuto) {
    // The inputs of blocks that keep the rest would go as well.
    rules.recompute = Tristate::kOn;
  }
  return rules;
}

class Input {
 public:
  explicit Input(const PlannerQuestion& question) : question_(question) {}

  Result<offload::PlannerInput> make() {
    // Sizes that do not depend on the placement.
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan sizes, memory_of({}));
    const Widths widths = widths_of(sizes);
    input_.speeds = question_.machine.speeds;
    input_.budget = question_.budget;
    input_.rules = rules_of(question_.config, sizes);
    set_bytes(widths);
    set_step(sizes, widths);
    for (int unit = 0; unit < question_.model.units(); ++unit) add_unit(unit, widths);
    if (!question_.on_gpu) keep_off_the_gpu();
    SLUICE_RETURN_IF_ERROR(set_param_cache(sizes));
    SLUICE_RETURN_IF_ERROR(set_fixed());
    return std::move(input_);
  }

 private:
  Result<MemoryPlan> memory_of(std::vector<offload::UnitPlacement> places) const {
    return memory_of(question_.config, std::move(places));
  }
  Result<MemoryPlan> memory_of(const config::Config& config,
                               std::vector<offload::UnitPlacement> places) const {
    return plan_memory(config, question_.model,
                       {.on_gpu = question_.on_gpu,
                        .gpu_room_bytes = question_.budget.gpu,
                        .places = std::move(places)});
  }

  void set_bytes(const Widths& widths) {
    input_.bytes = {.gpu_state = widths.state,
                    .gpu_grad = widths.grad,
                    .gpu_param = widths.param,
                    .host_state = widths.state,
                    .host_param = widths.param,
                    .host_grad = widths.grad,
                    .nvme_state = widths.state,
                    .nvme_param = widths.param};
  }

  void set_step(const MemoryPlan& sizes, const Widths& widths) {
    offload::StepModelOptions& step = input_.step;
    step.overlap_update = question_.config.placement.overlap_update;
    // One slot is computed with.
    step.prefetch_units = std::max(sizes.block_slots - 1, 1);
    step.grad_stages = kGradientStages;
    step.record_elements = largest_record(sizes);
    step.swap_buffer_elements =
        step.record_elements * static_cast<std::uint64_t>(sizes.optimizer.swap.buffers);
    step.param_cache_units = sizes.params.cache_buffers;
    if (sizes.unit_inputs) {
      input_.unit_input_slots = UnitInputPlan(question_.model, *sizes.unit_inputs).ring().slots();
    }
    step.bytes.param = widths.param;
    step.bytes.grad = widths.grad;
    step.bytes.nvme_read = step.bytes.nvme_write = widths.state;
    step.bytes.cpu_adamw_dram = 2 * (widths.state + widths.param) + widths.grad + 8;
  }

  // A small model's are smaller than what is asked for.
  static std::uint64_t largest_record(const MemoryPlan& sizes) {
    const bool settled = is_used(sizes, offload::Tier::kNvme);
    std::uint64_t elements = 1;
    for (const offload::SubGroup& it : sizes.optimizer.placement) {
      if (!settled || it.tier == offload::Tier::kNvme) elements = std::max(elements, it.elements);
    }
    return std::min(elements, sizes.optimizer.record_elements);
  }

  // What a step reads and writes of a unit's fp32 accumulators besides the timed backward: what is
  // set to zero, what is read to be added to from the second micro-batch on, and the cast.
  static double accumulator_bytes(const UnitLayout& layout, double micro_batches,
                                  double gradient_width) {
    constexpr double kFp32Bytes = 4;
    double zeroed = 0;
    for (const offload::ElementRange& range : zeroed_ranges(layout))
      zeroed += static_cast<double>(range.elements);
    const double products = static_cast<double>(layout.slot_elements) - zeroed;
    return kFp32Bytes * zeroed + kFp32Bytes * (micro_batches - 1) * products +
           (kFp32Bytes + gradient_width) * static_cast<double>(layout.elements);
  }

  void add_unit(int unit, const Widths& widths) {
    const UnitLayout& layout = question_.model.layout(unit);
    const bool is_block = question_.model.is_block(unit);
    // On the CPU this is settled.
    const bool recomputes =
        is_block && (question_.on_gpu || question_.config.placement.recompute != Tristate::kOff);
    const UnitSeconds& seconds = question_.machine.units.of(question_.model.kind(unit));
    const auto micro_batches = static_cast<double>(question_.config.batch.accumulation);
    const double copy_rate = input_.speeds.gpu_copy_bytes_per_s;
    const double gradient_s =
        copy_rate > 0 ? accumulator_bytes(layout, micro_batches, widths.grad) / copy_rate : 0;
    offload::UnitCost cost{.name = layout.name,
                           .elements = layout.elements,
                           .slot_elements = layout.slot_elements,
                           .forward_s = micro_batches * seconds.forward_s,
                           .recompute_s = recomputes ? micro_batches * seconds.recompute_s : 0,
                           .backward_s = micro_batches * seconds.backward_s + gradient_s,
                           .lenders = question_.model.lenders(unit)};
    if (is_block) {
      const PassShape pass{.micro_batch = question_.config.batch.micro,
                           .tokens = question_.config.data.sequence_tokens,
                           .number_bytes = widths.param == 4 ? 4 : 2};
      const auto count = static_cast<std::uint64_t>(question_.config.batch.accumulation);
      cost.unit_input_bytes = count * question_.model.unit_input_bytes(pass);
      cost.kept_bytes = count * question_.model.kind(unit).saved_bytes(pass);
    }
    input_.units.push_back(std::move(cost));
  }

  // The host computes: nothing of a placement is on a GPU.
  void keep_off_the_gpu() {
    input_.budget.gpu = 0;
    input_.bytes.gpu_param = 0;
    for (offload::UnitCost& unit : input_.units) unit.unit_input_bytes = unit.kept_bytes = 0;
  }

  // As many buffers as a plan with all parameters on NVMe has.
  Status set_param_cache(const MemoryPlan& sizes) {
    if (input_.rules.params || sizes.params.store.paths.empty()) return {};
    std::vector<offload::UnitPlacement> places;
    places.reserve(input_.units.size());
    for (const offload::UnitCost& unit : input_.units)
      places.push_back({.cpu_elements = unit.elements, .params_on_nvme = true});
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan on_nvme, memory_of(std::move(places)));
    input_.step.param_cache_units = on_nvme.params.cache_buffers;
    return {};
  }

  // By a placement without part of a unit on NVMe, whose records would be smaller than the formula
  // assumes.
  Status set_fixed() {
    constexpr std::uint64_t kPlenty = std::uint64_t{1} << 50;
    offload::PlannerInput as_planned = input_;
    as_planned.budget = {.gpu = question_.on_gpu ? kPlenty : 0, .cpu = kPlenty, .nvme = kPlenty};
    const offload::LeanestPlacement some = offload::leanest_placement(as_planned);
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan memory, memory_of(some.places));
    as_planned.step.prefetch_units = memory.block_slots - 1;
    const TierBytes placed = offload::placed_bytes(as_planned, some.places);
    const TierBytes all{.gpu = question_.on_gpu ? memory.gpu_bytes() : 0,
                        .cpu = memory.host_bytes(),
                        .nvme = memory.nvme_bytes()};
    input_.fixed = all.beyond(placed);
    // Whether the search puts state on the GPU or not.
    if (question_.on_gpu && !is_used(memory, offload::Tier::kGpu))
      input_.fixed.cpu += offload::GpuState::max_staging_bytes(memory.form);
    add_spare();
    return set_micro_batch(memory, some.places);
  }

  // What alignment and records' headers amount to in any placement, so that the formula is never
  // below the memory plan.
  void add_spare() {
    constexpr std::uint64_t kRecordBytes = 8 * kKiB;
    constexpr std::uint64_t kRecordsOfUnit = 4;  // by parameter groups and where tiers end
    std::uint64_t records = kRecordsOfUnit * input_.units.size();
    for (const offload::UnitCost& unit : input_.units)
      records += unit.elements / input_.step.record_elements;
    if (question_.on_gpu) input_.fixed.gpu += kSpareGpuBytes;
    input_.fixed.cpu += kSpareHostBytes;
    const std::uint64_t on_drives = kSpareDriveBytes + records * kRecordBytes;
    input_.fixed.nvme += std::min(on_drives, input_.budget.nvme);
  }

  // Of the fixed part: activations except those that the units count.
  Status set_micro_batch(const MemoryPlan& memory,
                         const std::vector<offload::UnitPlacement>& places) {
    if (!question_.on_gpu) return {};
    const std::uint64_t all = activation_bytes(memory);
    std::uint64_t of_units = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const offload::ActivationPlace activations = places[i].activations;
      if (activations != offload::ActivationPlace::kOffload)
        of_units += input_.units[i].unit_input_bytes;
      if (activations == offload::ActivationPlace::kKeep) of_units += input_.units[i].kept_bytes;
    }
    input_.micro_batch_bytes = std::min(all - std::min(all, of_units), input_.fixed.gpu);
    if (question_.config.batch.micro % 2 != 0) return {};
    config::Config half = question_.config;
    half.batch.micro /= 2;
    half.batch.accumulation *= 2;
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan halved, memory_of(half, places));
    input_.half_micro_batch_bytes = all - std::min(all, activation_bytes(halved));
    return {};
  }

  static std::uint64_t activation_bytes(const MemoryPlan& plan) {
    std::uint64_t bytes = 0;
    for (const MemoryLine& line : plan.gpu)
      if (line.use == MemoryUse::kActivations) bytes += line.bytes;
    return bytes;
  }

  const PlannerQuestion& question_;
  offload::PlannerInput input_;
};

}  // namespace

Result<offload::PlannerInput> planner_input(const PlannerQuestion& question) {
  return Input(question).make();
}

}  // namespace sluice::engine
