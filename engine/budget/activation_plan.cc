#include "engine/budget/activation_plan.h"

#include <algorithm>

#include "aio/units.h"

namespace sluice::engine {
namespace {

using offload::ActivationPlace;
using offload::UnitPlacement;

// Evaluated together, in an evaluation on its own: as many micro-batches as amount to this much
// between two units. More would fetch parameters less often; this much hides a drive behind a GPU.
constexpr std::uint64_t kEvaluationFlowBytes = 256 * kMiB;

// One slot is in use, one was just used, the others are being copied into.
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
      micro_batches_(static_cast<std::uint64_t>(spec.waves().of_a_wave)) {
  const config::Config& config = spec.config;
  const PassShape pass{.micro_batch = purpose_ == RunPurpose::kGeneration ? 1 : config.batch.micro,
                       .tokens = config.data.sequence_tokens,
                       .number_bytes = offload::param_bytes_per_element(spec.types().form)};
  input_bytes_ = spec.model.unit_input_bytes(pass);
  moved_bytes_ = UnitInputPlan(spec.model, inputs_).unit_bytes();
  call_bytes_ =
      spec.model.peak_bytes(pass, {.cpu = !spec.on_gpu, .deterministic = config.run.deterministic});
  const auto asked = static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.eval_batches, 1));
  evaluated_together_ = std::clamp<std::uint64_t>(kEvaluationFlowBytes / input_bytes_, 1, asked);
  keeps_all_ = !spec.on_gpu && spec.trains() && config.placement.recompute == Tristate::kOff;
  if (spec.on_gpu && spec.trains() && config.placement.boundaries_to_cpu == Tristate::kOn)
    asked_ring_ = ring_blocks(config);
  for (int unit = 0; unit < spec.model.units(); ++unit)
    saved_bytes_.push_back(
        spec.model.is_block(unit) ? micro_batches_ * spec.model.kind(unit).saved_bytes(pass) : 0);
}

std::optional<int> ActivationBytes::inputs_on_gpu(Places places) const {
  if (asked_ring_) return asked_ring_;
  const auto leaving = std::count_if(places.begin(), places.end(), [](const UnitPlacement& it) {
    return it.activations == ActivationPlace::kOffload;
  });
  if (leaving == 0) return std::nullopt;
  return blocks_ - static_cast<int>(leaving);
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
  std::uint64_t bytes = 2 * micro_batches_ * input_bytes_;  // what flows from unit to unit
  if (const auto slots = inputs_on_gpu(places))
    bytes += static_cast<std::uint64_t>(UnitInputRing(blocks_, *slots).slots()) * moved_bytes_;
  else
    bytes += static_cast<std::uint64_t>(blocks_) * micro_batches_ * input_bytes_;
  for (std::size_t unit = 0; unit < places.size(); ++unit)
    if (keeps_all_ || places[unit].activations == ActivationPlace::kKeep)
      bytes += saved_bytes_[unit];
  return bytes + call_bytes_;
}

std::uint64_t ActivationBytes::on_host(Places places) const {
  const auto slots = inputs_on_gpu(places);
  if (!slots) return 0;
  return static_cast<std::uint64_t>(UnitInputRing(blocks_, *slots).moved()) * moved_bytes_;
}

// An evaluation during training uses the memory of units' inputs.
ActivationPlan ActivationBytes::plan(Places places) const {
  ActivationPlan plan;
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
        micro_batches_ * (plan.unit_inputs ? 1 : static_cast<std::uint64_t>(blocks_));
  return plan;
}

}  // namespace sluice::engine
