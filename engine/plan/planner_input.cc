#include "engine/plan/planner_input.h"

#include <algorithm>

#include "engine/model/gpt_costs.h"
#include "engine/train/state_plan.h"
#include "offload/placement_fit.h"

namespace sluice::engine {
namespace {

using config::OffloadDevice;
using offload::TierBytes;

// What a byte count that no budget allows keeps away.
constexpr double kForbiddenBytes = 1e6;

struct Widths {
  double param = 2;
  double grad = 2;
  double state = 10;  // beside the parameter
};

Widths widths_of(const MemoryPlan& plan) {
  switch (plan.form) {
    case offload::ParamForm::kSplit:
    case offload::ParamForm::kFp32AndBf16:
      return {};
    case offload::ParamForm::kFp32AndFp16:
      return {.param = 2, .grad = 2, .state = 12};
    case offload::ParamForm::kFp32:
      break;
  }
  return {.param = 4, .grad = 4, .state = 8};
}

offload::Choice choice_of(config::Switch given) {
  switch (given) {
    case config::Switch::kOn:
      return offload::Choice::kOn;
    case config::Switch::kOff:
      return offload::Choice::kOff;
    case config::Switch::kAuto:
      break;
  }
  return offload::Choice::kAuto;
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

offload::PlacementRules rules_of(const config::Config& config, bool on_gpu) {
  offload::PlacementRules rules;
  rules.fractions = asked_fractions(config, on_gpu);
  rules.params = tier_of(config.zero.offload_param.device);
  if (!on_gpu && rules.params == offload::Tier::kGpu) rules.params = offload::Tier::kCpu;
  rules.recompute = choice_of(config.placement.recompute);
  rules.boundaries_to_cpu = choice_of(config.placement.boundaries_to_cpu);
  if (!on_gpu) {  // what there is of activations is in RAM anyway
    rules.recompute = offload::Choice::kOn;
    rules.boundaries_to_cpu = offload::Choice::kOff;
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
    input_.rules = rules_of(question_.config, question_.on_gpu);
    set_bytes(widths);
    set_step(sizes, widths);
    for (int unit = 0; unit < question_.model.units(); ++unit) add_unit(unit, widths);
    if (!question_.on_gpu) keep_off_the_gpu();
    SLUICE_RETURN_IF_ERROR(set_fixed());
    return std::move(input_);
  }

 private:
  Result<MemoryPlan> memory_of(std::vector<offload::UnitPlace> places) const {
    return plan_memory(question_.config, question_.model,
                       {.assume_gpu = question_.on_gpu, .places = std::move(places)});
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
    step.record_elements = sizes.optimizer.record_elements;
    step.swap_buffer_elements =
        sizes.optimizer.record_elements * static_cast<std::uint64_t>(sizes.optimizer.swap.buffers);
    step.param_cache_units = sizes.params.cache_buffers;
    step.bytes.param = widths.param;
    step.bytes.grad = widths.grad;
    step.bytes.nvme_read = step.bytes.nvme_write = widths.state;
    step.bytes.cpu_adamw_dram = 2 * (widths.state + widths.param) + widths.grad + 8;
  }

  void add_unit(int unit, const Widths& widths) {
    const UnitLayout& layout = question_.model.layout(unit);
    const bool is_head = unit == question_.model.head_index();
    const bool is_block = unit > 0 && !is_head;
    const UnitTimes& times = question_.machine.units;
    const UnitSeconds& seconds = unit == 0 ? times.embedding : is_head ? times.head : times.block;
    const auto micro_batches = static_cast<double>(question_.config.batch.accumulation);
    // Accumulators are set to zero, and cast when they are done.
    const double gradient_bytes = 2.0 * 4 + widths.grad;
    const double copy_rate = input_.speeds.gpu_copy_bytes_per_s;
    const double gradient_s =
        copy_rate > 0 ? gradient_bytes * static_cast<double>(layout.elements) / copy_rate : 0;
    offload::UnitCost cost{.name = layout.name,
                           .elements = layout.elements,
                           .slot_elements = layout.slot_elements,
                           .forward_s = micro_batches * seconds.forward_s,
                           .recompute_s = is_block ? micro_batches * seconds.recompute_s : 0,
                           .backward_s = micro_batches * seconds.backward_s + gradient_s};
    if (is_block) {
      const GptShape& shape = question_.model.shape();
      const PassShape pass{.micro_batch = question_.config.batch.micro,
                           .tokens = question_.config.data.sequence_tokens,
                           .number_bytes = widths.param == 4 ? 4 : 2};
      const auto count = static_cast<std::uint64_t>(question_.config.batch.accumulation);
      cost.boundary_bytes = count * boundary_bytes(shape, pass);
      cost.kept_bytes = count * block_saved_bytes(shape, pass);
    }
    input_.units.push_back(std::move(cost));
  }

  // The host computes: nothing of a placement is on a GPU.
  void keep_off_the_gpu() {
    input_.budget.gpu = 0;
    input_.bytes.gpu_state = kForbiddenBytes;
    input_.bytes.gpu_param = 0;
    for (offload::UnitCost& unit : input_.units) unit.boundary_bytes = unit.kept_bytes = 0;
  }

  Status set_fixed() {
    const offload::LeanestPlacement some = offload::leanest_placement(input_);
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan memory, memory_of(some.places));
    const TierBytes placed = offload::placed_bytes(input_, some.places);
    const TierBytes all{.gpu = question_.on_gpu ? memory.gpu_bytes() : 0,
                        .cpu = memory.host_bytes(),
                        .nvme = memory.nvme_bytes()};
    input_.fixed = all.beyond(placed);
    for (const MemoryLine& line : memory.gpu)
      if (line.what == kActivationsLine) input_.micro_batch_bytes = line.bytes;
    input_.micro_batch_bytes = std::min(input_.micro_batch_bytes, input_.fixed.gpu);
    return {};
  }

  const PlannerQuestion& question_;
  offload::PlannerInput input_;
};

}  // namespace

Result<offload::PlannerInput> planner_input(const PlannerQuestion& question) {
  return Input(question).make();
}

}  // namespace sluice::engine
