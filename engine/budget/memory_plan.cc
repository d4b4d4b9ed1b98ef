#include "engine/budget/memory_plan.h"

#include <numeric>
#include <utility>

#include "engine/budget/gradient_plan.h"
#include "engine/budget/memory_ledger.h"
#include "engine/budget/resolved_placement.h"
#include "offload/params/param_offloader.h"
#include "offload/state/optimizer_offloader.h"

namespace sluice::engine {
namespace {

std::uint64_t sum_of(const std::vector<MemoryLine>& lines) {
  return std::accumulate(
      lines.begin(), lines.end(), std::uint64_t{0},
      [](std::uint64_t sum, const MemoryLine& line) { return sum + line.bytes; });
}

// Checks the limits of the stores: checksums per record and records per store.
Status check_stores(const MemoryPlan& plan) {
  SLUICE_RETURN_IF_ERROR(offload::ParamOffloader::memory_plan(plan.params.options).status());
  if (plan.base)
    SLUICE_RETURN_IF_ERROR(
        offload::ParamOffloader::memory_plan(plan.base->params.options).status());
  if (plan.purpose != RunPurpose::kTraining) return {};
  if (plan.gradients)
    SLUICE_RETURN_IF_ERROR(offload::ParamOffloader::memory_plan(*plan.gradients).status());
  if (!plan.activations.spill.units.empty())
    SLUICE_RETURN_IF_ERROR(offload::InputSpill::check(plan.activations.spill));
  return offload::OptimizerOffloader::memory_plan(plan.state.optimizer).status();
}

MemoryPlan::Base plan_base(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                           const FetchPlan& fetching, std::vector<int> nvme_weights) {
  std::vector<bool> resident;
  for (const offload::UnitPlacement& place : places) resident.push_back(place.resident);
  return {
      .params = plan_base_params(spec, places, fetching.prefetch_units, std::move(nvme_weights)),
      .residency = offload::UnitResidency(spec.model.units(), {}, resident),
      .form = BaseForm::of(spec)};
}

// The parameters that are streamed.
const ParamPlan& streamed(const MemoryPlan& plan) {
  return plan.base ? plan.base->params : plan.params;
}

void add_compute_lines(const RunSpec& spec, const MemoryAmounts& amounts,
                       std::vector<MemoryLine>& lines) {
  lines.push_back({"activations", MemoryUse::kActivations, amounts.compute.activations});
  if (spec.keeps_keys_and_values())
    lines.push_back({spec.trains() ? "keys and values of sample texts" : "keys and values",
                     MemoryUse::kOther, amounts.compute.kv_cache});
}

void add_host_lines(const RunSpec& spec, const MemoryAmounts& amounts, MemoryPlan& plan) {
  const MemoryAmounts::Host& host = amounts.host;
  constexpr bool kLocked = true;
  plan.host.push_back({"parameters in memory", MemoryUse::kParameters, host.params, kLocked});
  plan.host.push_back(
      {"cache of parameters on NVMe", MemoryUse::kParameters, host.param_cache, kLocked});
  if (host.param_slots > 0)
    plan.host.push_back({"parameters, slots", MemoryUse::kParameters, host.param_slots});
  if (host.param_copies > 0)
    plan.host.push_back({"copy of gathered parameters", MemoryUse::kParameters, host.param_copies,
                         /*locked=*/spec.on_gpu});
  if (spec.trains()) {
    plan.host.push_back({"optimizer state in memory", MemoryUse::kState, host.state});
    plan.host.push_back(
        {"buffers for optimizer state on NVMe", MemoryUse::kState, host.swap_buffers, kLocked});
    plan.host.push_back(
        {"optimizer state while it is loaded or saved", MemoryUse::kState, host.state_transfer});
  }
  plan.host.push_back({"the program and LibTorch", MemoryUse::kOther, host.program});
  if (plan.activations.unit_inputs)
    plan.host.push_back({"unit inputs", MemoryUse::kUnitInputs, host.unit_inputs, kLocked});
  if (host.input_buffers > 0)
    plan.host.push_back(
        {"buffers for unit inputs on NVMe", MemoryUse::kUnitInputs, host.input_buffers, kLocked});
  if (!spec.on_gpu) add_compute_lines(spec, amounts, plan.host);
  if (spec.trains()) plan.host.push_back({"gradients", MemoryUse::kOther, host.gradients});
  if (host.gradient_buffers > 0)
    plan.host.push_back(
        {"buffers for gradients on NVMe", MemoryUse::kOther, host.gradient_buffers, kLocked});
}

void add_gpu_lines(const RunSpec& spec, const MemoryAmounts& amounts, MemoryPlan& plan) {
  const MemoryAmounts::Gpu& gpu = amounts.gpu;
  add_compute_lines(spec, amounts, plan.gpu);
  plan.gpu.push_back({"optimizer state", MemoryUse::kState, gpu.state});
  plan.gpu.push_back({"resident parameters", MemoryUse::kParameters, gpu.resident_params});
  if (spec.trains()) plan.gpu.push_back({"gradients", MemoryUse::kOther, gpu.gradients});
  plan.gpu.push_back({"CUDA's context", MemoryUse::kOther, gpu.context});
  plan.gpu.push_back({"CUDA's libraries", MemoryUse::kOther, gpu.libraries});
  plan.gpu.push_back({"parameters, slots", MemoryUse::kParameters, gpu.slots});
  if (gpu.param_copies > 0)
    plan.gpu.push_back({"copy of gathered parameters", MemoryUse::kParameters, gpu.param_copies});
}

void add_nvme_lines(const RunSpec& spec, const MemoryAmounts& amounts, MemoryPlan& plan) {
  const auto add = [&](const char* what, MemoryUse use, const swap::StateStore::Options& store,
                       std::uint64_t bytes) {
    plan.nvme.push_back(
        {.what = what, .use = use, .bytes = bytes, .paths = bytes_on_paths(store, bytes)});
  };
  add("parameters", MemoryUse::kParameters, streamed(plan).options.store, amounts.nvme.params);
  if (spec.trains())
    add(spec.config.run.checkpoint_in_place ? "optimizer state in two places" : "optimizer state",
        MemoryUse::kState, plan.state.optimizer.store, amounts.nvme.state);
  if (amounts.nvme.unit_inputs > 0)
    add("unit inputs", MemoryUse::kUnitInputs, plan.activations.spill.store,
        amounts.nvme.unit_inputs);
  if (plan.gradients)
    add("gradients", MemoryUse::kOther, plan.gradients->store, amounts.nvme.gradients);
}

// DeepSpeed's key divides a copy among any number of ranks; here it is divided among a host's.
Status check_partition(const RunSpec& spec) {
  const std::int64_t asked = spec.config.zero.hpz_partition_ranks;
  const int of_host = spec.ranks.local_world();
  if (spec.host_copies() == config::HostCopy::kOff || asked == 1 || asked == of_host) return {};
  return Error(ErrorCode::kInvalidArgument,
               "zero_optimization.zero_hpz_partition_size is " + std::to_string(asked) +
                   ", and each host has " + std::to_string(of_host) + " ranks: set it to " +
                   std::to_string(of_host) + " to keep a copy on each host, or to 1");
}

std::vector<std::string> notes_on_copies(const RunSpec& spec) {
  const config::HostCopy asked = spec.config.communication.host_copy;
  if (!spec.trains() || asked == config::HostCopy::kOff) return {};
  if (spec.ranks.hosts == 1)
    return {
        "communication.host_copy has no effect: it is for several hosts with the same number of "
        "ranks, more than one on each, numbered host by host"};
  if (spec.config.zero.stage != 3)
    return {"communication.host_copy has no effect: only stage 3 of ZeRO gathers parameters"};
  if (!spec.on_gpu && asked == config::HostCopy::kGpu)
    return {"communication.host_copy is in RAM: without a GPU all parameters are"};
  return {};
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
  const RunSpec spec{.config = config,
                     .model = model,
                     .purpose = options.purpose,
                     .on_gpu = options.on_gpu,
                     .wave_micro_batches = options.wave_micro_batches,
                     .ranks = options.ranks,
                     .names = options.names,
                     .keeps_sums = options.keeps_sums,
                     .moves_gradients = options.moves_gradients,
                     .copies_on_gpu = options.copies_on_gpu};
  SLUICE_RETURN_IF_ERROR(check_gradients_on_nvme(spec));
  SLUICE_RETURN_IF_ERROR(check_partition(spec));
  SLUICE_ASSIGN_OR_RETURN(const auto places, resolve_placement(spec, options.places));
  SLUICE_ASSIGN_OR_RETURN(const auto ledger, MemoryLedger::create(spec, /*block_slots=*/1));
  MemoryPlan plan{.purpose = options.purpose, .cuda = options.on_gpu, .types = spec.types()};
  if (spec.trains()) {
    plan.waves = spec.waves();
    plan.sum_order = spec.sum_order();
    plan.sums = spec.sums();
    plan.ranks = spec.ranks;
    plan.gathering = Gathering::of(spec);
  }
  plan.fetching = plan_fetching(
      spec, *ledger, places, {.gpu_bytes = options.gpu_room_bytes, .slots = options.block_slots});
  ledger->set_block_slots(plan.fetching.block_slots);
  const std::vector<int> weights = stripe_weights(config, options.nvme_weights);
  SLUICE_ASSIGN_OR_RETURN(plan.state, plan_state(spec, places, weights));
  plan.params = plan_params(spec, places, plan.fetching.prefetch_units, weights);
  if (model.has_frozen()) plan.base = plan_base(spec, places, plan.fetching, weights);
  plan.activations = ActivationBytes(spec).plan(spec, places, weights);
  if (spec.gradients_on_nvme())
    plan.gradients = plan_gradients(spec, plan.state.residency, weights);
  SLUICE_RETURN_IF_ERROR(check_stores(plan));
  const MemoryAmounts amounts = ledger->amounts(places);
  add_host_lines(spec, amounts, plan);
  if (spec.on_gpu) add_gpu_lines(spec, amounts, plan);
  add_nvme_lines(spec, amounts, plan);
  for (const std::vector<std::string>& notes :
       {plan.state.notes, streamed(plan).notes, plan.fetching.notes, notes_on_copies(spec)})
    plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
  return plan;
}

CudaSlotOptions slot_options(const MemoryPlan& plan) {
  return {.type = plan.types.compute(),
          .param_form = plan.types.form,
          .block_slots = plan.fetching.block_slots,
          .ends_take_turns = plan.purpose == RunPurpose::kTraining && !plan.base,
          .residency = plan.state.residency,
          .ranks = plan.ranks,
          .gathering = plan.base ? Gathering() : plan.gathering};
}

CudaSlotOptions base_slot_options(const MemoryPlan& plan) {
  return {.type = plan.types.compute(),
          .block_slots = plan.fetching.block_slots,
          .residency = plan.base->residency,
          .base = plan.base->form,
          .ranks = plan.base->form.ranks,
          .gathering = plan.gathering,
          .is_frozen = true};
}

CudaSinkOptions sink_options(const MemoryPlan& plan) {
  return {.type = plan.types.gradient,
          .residency = plan.state.residency,
          .order = plan.sum_order,
          .sums = plan.sums,
          .ranks = plan.ranks,
          .on_nvme = plan.gradients.has_value()};
}

}  // namespace sluice::engine
