#include "engine/plan/planner_input.h"

#include <algorithm>

#include "engine/budget/gradient_plan.h"
#include "engine/budget/memory_ledger.h"
#include "engine/budget/param_plan.h"
#include "engine/budget/resolved_placement.h"
#include "engine/model/row_pieces.h"
#include "engine/model/zeroed_ranges.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

using config::OffloadDevice;

struct Widths {
  double param = 2;
  double grad = 2;
  double state = 10;  // in addition to the parameter
};

Widths widths_of(const NumberTypes& types) {
  const auto param = static_cast<double>(offload::param_bytes_per_element(types.form));
  return {.param = param,
          .grad = param,
          .state = static_cast<double>(offload::state_bytes_per_element(types.state()))};
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

offload::PlacementRules rules_of(const RunSpec& spec, const MemoryPlan& sizes) {
  const config::Config& config = spec.config;
  const bool on_gpu = spec.on_gpu;
  offload::PlacementRules rules;
  if (asked_fractions(config, on_gpu))
    rules.state = tier_elements(spec.model.units(), sizes.state.optimizer.placement);
  rules.state_on_gpu = on_gpu;
  rules.state_on_nvme = !config.optimizer_nvme_paths().empty();
  rules.params_on_nvme = !config.param_nvme_paths().empty();
  rules.params = tier_of(config.zero.offload_param.device);
  if (!on_gpu && rules.params == offload::Tier::kGpu) rules.params = offload::Tier::kCpu;
  if ((spec.ranks.world > 1 && !spec.model.has_frozen()) || spec.sends_int8())
    rules.resident = on_gpu && config.zero.stage < 3 ? Tristate::kOn : Tristate::kOff;
  rules.recompute = config.placement.recompute;
  rules.unit_inputs_to_cpu = config.placement.unit_inputs_to_cpu;
  rules.unit_inputs_to_nvme = config.unit_input_nvme_paths().empty()
                                  ? Tristate::kOff
                                  : config.placement.unit_inputs_to_nvme;
  const bool inputs_leave =
      rules.unit_inputs_to_cpu == Tristate::kOn || rules.unit_inputs_to_nvme == Tristate::kOn;
  if (!on_gpu && rules.unit_inputs_to_nvme == Tristate::kAuto)
    rules.unit_inputs_to_nvme = Tristate::kOff;
  if (!on_gpu) {  // all activations are in RAM
    rules.recompute = Tristate::kOn;
    rules.unit_inputs_to_cpu = Tristate::kOff;
  } else if (inputs_leave && rules.recompute == Tristate::kAuto) {
    // The inputs of blocks that save activations would leave the GPU, too.
    rules.recompute = Tristate::kOn;
  }
  return rules;
}

class Input {
 public:
  explicit Input(const PlannerQuestion& question) : question_(question) {}

  Result<offload::PlannerInput> make() {
    // Sizes that are independent of the placement.
    SLUICE_ASSIGN_OR_RETURN(const MemoryPlan sizes,
                            plan_memory(question_.config, question_.model,
                                        {.on_gpu = question_.on_gpu,
                                         .gpu_room_bytes = question_.budget.gpu,
                                         .wave_micro_batches = question_.wave_micro_batches,
                                         .ranks = first_rank(),
                                         .names = question_.names,
                                         .keeps_sums = question_.keeps_sums,
                                         .moves_gradients = question_.moves_gradients}));
    const RunSpec spec{.config = question_.config,
                       .model = question_.model,
                       .on_gpu = question_.on_gpu,
                       .wave_micro_batches = question_.wave_micro_batches,
                       .ranks = first_rank(),
                       .names = question_.names,
                       .keeps_sums = question_.keeps_sums,
                       .moves_gradients = question_.moves_gradients};
    input_.step.ranks = question_.ranks;
    gathering_ = Gathering::of(spec);
    input_.step.keeps_host_copies = gathering_.keeps_copies();
    if (question_.on_gpu) input_.step.exchanged_bytes = kExchangedBytes;
    input_.step.waves = spec.waves();
    input_.step.sums = spec.sum_order();
    const Widths widths = widths_of(sizes.types);
    base_form_ = BaseForm::of(spec);
    input_.speeds = offload::speeds_of_rank(question_.machine.speeds, question_.ranks);
    input_.budget = question_.budget;
    if (!question_.on_gpu) input_.budget.gpu = 0;
    if (const auto& tb_per_day = question_.config.budget.nvme_tb_per_day)
      input_.max_nvme_write_bytes_per_s = *tb_per_day * kTbPerDay / question_.ranks.local_world;
    input_.rules = rules_of(spec, sizes);
    set_step(spec, sizes, widths);
    const std::vector<bool> persistent = persistent_units(spec);
    for (int unit = 0; unit < question_.model.units(); ++unit)
      add_unit(unit, persistent[static_cast<std::size_t>(unit)], widths);
    SLUICE_ASSIGN_OR_RETURN(input_.ledger, MemoryLedger::create(spec, sizes.fetching.block_slots));
    return std::move(input_);
  }

 private:
  offload::RankPart first_rank() const { return question_.ranks.part(0); }
  offload::UnitShard shard(const UnitLayout& layout) const {
    return offload::shard_of(layout.elements, first_rank());
  }

  void set_step(const RunSpec& spec, const MemoryPlan& sizes, const Widths& widths) {
    offload::StepModelOptions& step = input_.step;
    step.overlap_update = question_.config.placement.overlap_update;
    // One slot is in use.
    step.prefetch_units = std::max(sizes.fetching.block_slots - 1, 1);
    step.grad_stages = kGradientStages;
    step.record_elements = largest_record(sizes);
    step.swap_buffer_elements =
        step.record_elements * static_cast<std::uint64_t>(sizes.state.optimizer.swap.buffers);
    step.param_cache_units = param_cache_units();
    // A pass over many rows takes longer than the copy of the next input, so one slot is enough for
    // what arrives.
    const config::Config& config = question_.config;
    if (RowPieces(config.batch.micro * config.data.sequence_tokens).cut())
      input_.unit_input_slots = 2;
    if (const auto& inputs = sizes.activations.unit_inputs)
      input_.unit_input_slots = UnitInputPlan(question_.model, *inputs).ring().slots();
    step.spill_units = sizes.activations.spill_units;
    if (spec.gradients_on_nvme()) {
      step.gradient_buffers = gradient_buffers(spec);
      step.kept_sums = spec.sums().kept;
    }
    step.bytes.param = widths.param;
    step.bytes.grad = widths.grad;
    step.bytes.nvme_read = step.bytes.nvme_write = widths.state;
    step.bytes.cpu_adamw_dram = 2 * (widths.state + widths.param) + widths.grad + 8;
  }

  // A small model's records are smaller than the configured size.
  static std::uint64_t largest_record(const MemoryPlan& sizes) {
    const bool is_fixed = sizes.state.uses(offload::Tier::kNvme);
    std::uint64_t elements = 1;
    for (const offload::SubGroup& it : sizes.state.optimizer.placement) {
      if (!is_fixed || it.tier == offload::Tier::kNvme) elements = std::max(elements, it.elements);
    }
    return std::min(elements, sizes.state.optimizer.record_elements);
  }

  // Traffic of a unit's fp32 accumulators in a step, in addition to the timed backward. It consists
  // of the zeroing, the reads for adding from a lane's second micro-batch on, the sums over lanes,
  // and the cast. With several ranks the cast is of the reduced shard (reduce_s()).
  double accumulator_bytes(const UnitLayout& layout, double gradient_width) const {
    constexpr double kFp32Bytes = 4;
    constexpr double kAddedBytes = 3 * kFp32Bytes;
    const auto micro_batches = static_cast<double>(question_.config.batch.accumulation);
    const auto lanes = static_cast<double>(input_.step.sums.lanes());
    double zeroed = 0;
    for (const offload::ElementRange& range : zeroed_ranges(layout))
      zeroed += static_cast<double>(range.elements);
    const double products = static_cast<double>(layout.slot_elements) - zeroed;
    const double cast = question_.ranks.world == 1 ? static_cast<double>(layout.elements) : 0;
    return lanes * kFp32Bytes * zeroed + (micro_batches - lanes) * kFp32Bytes * products +
           (lanes - 1) * kAddedBytes * static_cast<double>(layout.slot_elements) +
           (kFp32Bytes + gradient_width) * cast;
  }

  // With several ranks, the time to read and add all their sums of a shard, and to cast it. The
  // host adds with one core.
  double reduce_s(const UnitLayout& layout, double gradient_width) const {
    constexpr double kAddedBytes = 12;
    constexpr double kCoreBytesPerS = 1e10;
    const auto elements = static_cast<double>(shard(layout).elements);
    const double bytes =
        elements * (kAddedBytes * (question_.ranks.world - 1) + 4 + gradient_width);
    const double on_host = std::min(input_.speeds.host_copy_bytes_per_s, kCoreBytesPerS);
    const double rate = question_.on_gpu ? input_.speeds.gpu_copy_bytes_per_s : on_host;
    return rate > 0 ? bytes / rate : 0;
  }

  void add_unit(int unit, bool persistent, const Widths& widths) {
    const UnitLayout& layout = question_.model.layout(unit);
    const bool is_block = question_.model.is_block(unit);
    // On the CPU the configuration determines this.
    const bool recomputes =
        is_block && (question_.on_gpu || question_.config.placement.recompute != Tristate::kOff);
    const UnitSeconds& seconds = question_.machine.units.of(question_.model.kind(unit));
    const auto micro_batches = static_cast<double>(question_.config.batch.accumulation);
    const double copy_rate = input_.speeds.gpu_copy_bytes_per_s;
    const double gradient_s =
        copy_rate > 0 ? accumulator_bytes(layout, widths.grad) / copy_rate : 0;
    offload::UnitCost cost{
        .name = layout.name,
        .elements = shard(layout).elements,
        .frozen_elements = question_.model.frozen(unit).elements,
        .frozen_bytes = base_form_.shard_bytes(question_.model.frozen(unit)),
        .unpack_s = unpack_s(question_.model.frozen(unit)),
        .forward_s = micro_batches * seconds.forward_s,
        .recompute_s = recomputes ? micro_batches * seconds.recompute_s : 0,
        .backward_s = micro_batches * seconds.backward_s + gradient_s,
        .lenders = question_.model.lenders(unit),
        .params_stay_in_ram = persistent,
        .whole_elements = offload::gathered_elements(layout.elements, question_.ranks.world),
        .reduce_s = reduce_s(layout, widths.grad),
        .gathered_frozen_bytes =
            base_form_.is_sharded() ? base_form_.gathered_bytes(question_.model.frozen(unit)) : 0,
        .sent_bytes = gathering_.in_int8
                          ? sent_unit(layout, base_form_.form, question_.ranks.world).bytes()
                          : 0};
    if (is_block) {
      const PassShape pass{.micro_batch = question_.config.batch.micro,
                           .tokens = question_.config.data.sequence_tokens,
                           .number_bytes = widths.param == 4 ? 4 : 2};
      const auto count = static_cast<std::uint64_t>(input_.step.waves.of_a_wave);
      cost.unit_input_bytes = count * question_.model.unit_input_bytes(pass);
      // On the CPU the configuration determines what is saved.
      if (question_.on_gpu) cost.kept_bytes = count * question_.model.kind(unit).saved_bytes(pass);
    }
    input_.units.push_back(std::move(cost));
  }

  // Expanding an encoded base: it is read, and written in the compute type.
  double unpack_s(const UnitLayout& frozen) const {
    const double rate =
        question_.on_gpu ? input_.speeds.gpu_copy_bytes_per_s : input_.speeds.host_copy_bytes_per_s;
    if (!base_form_.is_encoded() || rate <= 0) return 0;
    return static_cast<double>(base_form_.bytes(frozen) + base_form_.unpacked_bytes(frozen)) / rate;
  }

  // The number of buffers if all parameters are on NVMe; with fewer there, the run may have more.
  int param_cache_units() const {
    std::uint64_t largest = 0;
    for (int unit = 0; unit < question_.model.units(); ++unit) {
      const UnitLayout& layout = question_.model.base_layout(unit);
      const bool is_whole = question_.model.has_frozen() && !base_form_.is_sharded();
      largest = std::max(largest, is_whole ? layout.elements : shard(layout).elements);
    }
    return param_cache_buffers(question_.config.zero.offload_param, largest);
  }

  const PlannerQuestion& question_;
  BaseForm base_form_;
  Gathering gathering_;
  offload::PlannerInput input_;
};

}  // namespace

Result<offload::PlannerInput> planner_input(const PlannerQuestion& question) {
  return Input(question).make();
}

}  // namespace sluice::engine
