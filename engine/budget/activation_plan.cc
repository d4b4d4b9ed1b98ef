#include "engine/budget/activation_plan.h"

#include <algorithm>
#include <utility>

#include "aio/units.h"
#include "engine/budget/stripe_plan.h"
#include "offload/planner/placement.h"

namespace sluice::engine {
namespace {

using offload::ActivationPlace;
using offload::UnitPlacement;

// A standalone evaluation sends micro-batches through the units together until this many bytes flow
// between two units. More would fetch parameters less often, but this much already hides a drive's
// reads under a GPU's computation.
constexpr std::uint64_t kEvaluationFlowBytes = 256 * kMiB;

// One slot is in use, one was just used, and the others are being copied into.
int ring_blocks(const config::Config& config) {
  constexpr std::int64_t kMostAhead = 64;
  return static_cast<int>(
             std::clamp<std::int64_t>(config.placement.prefetch_units, 1, kMostAhead)) +
         2;
}

}  // namespace

ActivationBytes::ActivationBytes(const RunSpec& spec)
    : purpose_(spec.purpose),
      inputs_{.micro_batches = spec.waves().of_a_wave,
              .micro_batch = spec.config.batch.micro,
              .tokens = spec.config.data.sequence_tokens,
              .type = spec.types().compute(),
              .slots = 1},
      blocks_(spec.model.blocks()),
      on_gpu_(spec.on_gpu),
      micro_batches_(static_cast<std::uint64_t>(spec.waves().of_a_wave)) {
  const config::Config& config = spec.config;
  const PassShape pass{.micro_batch = purpose_ == RunPurpose::kGeneration ? 1 : config.batch.micro,
                       .tokens = config.data.sequence_tokens,
                       .number_bytes = offload::param_bytes_per_element(spec.types().form)};
  input_bytes_ = spec.model.unit_input_bytes(pass);
  moved_bytes_ = UnitInputPlan(spec.model, inputs_).unit_bytes();
  call_bytes_ =
      spec.model.peak_bytes(pass, {.cpu = !spec.on_gpu, .deterministic = config.run.deterministic});
  load_bytes_ =
      spec.model.expert_load_bytes({.micro_batches = spec.waves().micro_batches,
                                    .of_a_wave = spec.waves().of_a_wave,
                                    .balances = balance_coefficient(config.model.shape()) > 0});
  const auto asked = static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1));
  evaluated_together_ = std::clamp<std::uint64_t>(kEvaluationFlowBytes / input_bytes_, 1, asked);
  keeps_all_ = !spec.on_gpu && spec.trains() && config.placement.recompute == Tristate::kOff;
  spills_all_ = spec.trains() && config.placement.unit_inputs_to_nvme == Tristate::kOn;
  const bool all_leave = config.placement.unit_inputs_to_cpu == Tristate::kOn || spills_all_;
  if (spec.on_gpu && spec.trains() && all_leave) asked_ring_ = ring_blocks(config);
  for (int unit = 0; unit < spec.model.units(); ++unit)
    saved_bytes_.push_back(
        spec.model.is_block(unit) ? micro_batches_ * spec.model.kind(unit).saved_bytes(pass) : 0);
}

std::optional<int> ActivationBytes::inputs_on_gpu(Places places) const {
  if (asked_ring_) return asked_ring_;
  const auto leaving = std::count_if(places.begin(), places.end(), [](const UnitPlacement& it) {
    return offload::input_leaves(it.activations);
  });
  if (leaving == 0 || !on_gpu_) return std::nullopt;
  return blocks_ - static_cast<int>(leaving);
}

int ActivationBytes::moved(Places places) const {
  const auto slots = inputs_on_gpu(places);
  return slots ? UnitInputRing(blocks_, *slots).moved() : std::max(blocks_ - 1, 0);
}

int ActivationBytes::spilled(Places places) const {
  if (purpose_ != RunPurpose::kTraining) return 0;
  if (spills_all_) return moved(places);
  const auto asked = std::count_if(places.begin(), places.end(), [](const UnitPlacement& place) {
    return place.activations == ActivationPlace::kSpill;
  });
  return std::min(static_cast<int>(asked), moved(places));
}

offload::InputSpill::Footprint ActivationBytes::spill_footprint(Places places) const {
  return offload::InputSpill::footprint(
      static_cast<std::uint64_t>(spilled(places)) * micro_batches_, input_bytes_);
}

std::uint64_t ActivationBytes::spill_buffers(Places places) const {
  return spill_footprint(places).buffer_bytes;
}

std::uint64_t ActivationBytes::on_nvme(Places places) const {
  return spill_footprint(places).nvme_bytes;
}

std::uint64_t ActivationBytes::on_device(Places places) const {
  switch (purpose_) {
    case RunPurpose::kGeneration:
      return input_bytes_ + call_bytes_;
    case RunPurpose::kEvaluation:
      return evaluated_together_ * input_bytes_ + call_bytes_;
    case RunPurpose::kTraining:
      break;
  }
  // Data that flows from unit to unit. call_bytes_ has all of it if there is one micro-batch.
  std::uint64_t bytes = micro_batches_ == 1 ? 0 : 2 * micro_batches_ * input_bytes_;
  if (const auto slots = inputs_on_gpu(places))
    bytes += static_cast<std::uint64_t>(UnitInputRing(blocks_, *slots).slots()) * moved_bytes_;
  else
    bytes += static_cast<std::uint64_t>(blocks_ - spilled(places)) * micro_batches_ * input_bytes_;
  for (std::size_t unit = 0; unit < places.size(); ++unit)
    if (keeps_all_ || places[unit].activations == ActivationPlace::kKeep)
      bytes += saved_bytes_[unit];
  return bytes + call_bytes_ + load_bytes_;
}

std::uint64_t ActivationBytes::on_host(Places places) const {
  const auto slots = inputs_on_gpu(places);
  if (!slots) return 0;
  const int in_ram = moved(places) - spilled(places);
  return static_cast<std::uint64_t>(in_ram) * moved_bytes_;
}

// On a GPU the ring decides which inputs leave it; the spilled ones are spread evenly over those.
std::vector<bool> ActivationBytes::spilled_units(const RunSpec& spec, Places places) const {
  std::vector<bool> units(places.size(), false);
  const int all = spilled(places);
  const auto slots = inputs_on_gpu(places);
  const int leave = moved(places);
  int block = 0;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    if (!spec.model.is_block(unit)) continue;
    const int index = block++;
    units[static_cast<std::size_t>(unit)] =
        slots || spills_all_
            ? index < leave && offload::is_chosen_evenly(index, all, leave)
            : places[static_cast<std::size_t>(unit)].activations == ActivationPlace::kSpill;
  }
  return units;
}

// An evaluation during training uses the memory of the unit inputs.
ActivationPlan ActivationBytes::plan(const RunSpec& spec, Places places,
                                     std::vector<int> nvme_weights) const {
  ActivationPlan plan;
  const auto most = offload::InputSpill::footprint(
      static_cast<std::uint64_t>(blocks_) * micro_batches_, input_bytes_);
  plan.spill_units =
      std::max(static_cast<int>(static_cast<std::uint64_t>(most.buffers) / micro_batches_), 1);
  if (spilled(places) > 0) {
    plan.spilled = spilled_units(spec, places);
    plan.spill.pieces_of_unit = micro_batches_;
    plan.spill.piece_bytes = input_bytes_;
    plan.spill.store.paths = spec.config.unit_input_nvme_paths();
    plan.spill.store.weights = std::move(nvme_weights);
    plan.spill.store.run = store_name(spec.config, "inputs", spec.ranks);
    plan.spill.store.label = "unit inputs";
    for (int unit = 0; unit < spec.model.units(); ++unit)
      if (plan.spilled[static_cast<std::size_t>(unit)])
        plan.spill.units.push_back(spec.model.layout(unit).name);
  }
  for (const UnitPlacement& place : places)
    plan.kept.push_back(place.activations == ActivationPlace::kKeep);
  if (const auto slots = inputs_on_gpu(places)) {
    plan.unit_inputs = inputs_;
    plan.unit_inputs->slots = *slots;
  }
  if (purpose_ == RunPurpose::kEvaluation)
    plan.evaluation_micro_batches = evaluated_together_;
  else if (purpose_ == RunPurpose::kTraining)
    plan.evaluation_micro_batches =
        micro_batches_ *
        (plan.unit_inputs ? 1 : static_cast<std::uint64_t>(std::max(blocks_ - spilled(places), 1)));
  return plan;
}

}  // namespace sluice::engine
