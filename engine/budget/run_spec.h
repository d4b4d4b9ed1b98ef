// RunSpec: the input of a memory plan: a configuration, its model as data, the purpose of the run,
// and the number types that follow from them.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/config/config.h"
#include "engine/model/model_layout.h"
#include "engine/weights/parameter_names.h"
#include "offload/element_types.h"
#include "offload/step_program.h"
#include "offload/sum_order.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

enum class RunPurpose : std::uint8_t { kTraining, kEvaluation, kGeneration };

struct NumberTypes {
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::GradType gradient = offload::GradType::kBf16;
  offload::ElementType moments = offload::ElementType::kFp32;

  offload::StateForm state() const { return {.param = form, .moments = moments}; }
  offload::ElementType compute() const { return offload::compute_type(form); }
};

constexpr NumberTypes number_types(config::Precision precision) {
  switch (precision) {
    case config::Precision::kBf16:
      return {offload::ParamForm::kSplit, offload::GradType::kBf16};
    case config::Precision::kFp16:
      return {offload::ParamForm::kFp32AndFp16, offload::GradType::kFp16};
    case config::Precision::kFp32:
      break;
  }
  return {offload::ParamForm::kFp32, offload::GradType::kFp32};
}

// Both references must outlive it.
struct RunSpec {
  const config::Config& config;
  const ModelLayout& model;  // from configured_layout() for the same device
  RunPurpose purpose = RunPurpose::kTraining;
  bool on_gpu = false;
  // Per wave, chosen by the planner if the configuration leaves it open; 0: all of a step's.
  std::int64_t wave_micro_batches = 0;
  offload::RankPart ranks = {};  // the rank that plans, of a training run
  // The parameter names in files for a module of the Python package. Null: a model of a built-in
  // family, whose names the program has.
  const ParameterNames* names = nullptr;
  // A unit's sums are put away and resumed within a micro-batch, because the engine does not
  // control its passes.
  bool keeps_sums = false;
  // The planner's choice for gradients, if the configuration leaves it open: to NVMe.
  bool moves_gradients = false;

  // The planner's choice for copies on hosts, if the configuration leaves it open.
  bool copies_on_gpu = false;

  // The shard of a unit's trained parameters.
  offload::UnitShard shard(int unit) const {
    return offload::shard_of(model.layout(unit).elements, ranks);
  }
  // The ranks that share frozen parameters: at stage 3 the same as for trained ones; else each rank
  // has all of them.
  offload::RankPart base_ranks() const {
    return config.zero.stage == 3 ? ranks : offload::RankPart();
  }
  // Whether trained units are rounded to 8 bits when they are gathered, even by one rank.
  bool sends_int8() const {
    return trains() && !model.has_frozen() &&
           config.communication.weights == config::SentWeights::kInt8;
  }
  // Where each host keeps what it gathered of the streamed units; never kAuto.
  config::HostCopy host_copies() const {
    const config::HostCopy asked = config.communication.host_copy;
    if (!trains() || ranks.hosts == 1 || config.zero.stage != 3) return config::HostCopy::kOff;
    if (asked == config::HostCopy::kOff) return asked;
    if (!on_gpu) return config::HostCopy::kRam;
    if (asked == config::HostCopy::kAuto)
      return copies_on_gpu ? config::HostCopy::kGpu : config::HostCopy::kRam;
    return asked;
  }
  offload::Waves waves() const {
    const std::int64_t all = config.batch.accumulation;
    const std::int64_t asked = config.placement.wave_micro_batches;
    const std::int64_t chosen = asked > 0 ? asked : wave_micro_batches;
    return {.micro_batches = all, .of_a_wave = chosen > 0 ? std::min(chosen, all) : all};
  }
  // The order for this rank's micro-batches; every rank has the same number of lanes.
  offload::SumOrder sum_order() const {
    return offload::SumOrder({.micro_batches = config.batch.accumulation,
                              .lanes = config.run.lanes / ranks.world,
                              .rounds = config.run.rounds,
                              .ranks = ranks,
                              .codec = config.communication.gradients});
  }
  // Sums kept for a unit's gradients.
  offload::HeldSums sums() const {
    if (!trains()) return {};
    offload::HeldSums held = sum_order().held(waves());
    if (keeps_sums || (gradients_on_nvme() && !on_gpu))
      held.kept = std::max(held.kept, held.levels);
    return held;
  }
  bool gradients_on_nvme() const {
    const Tristate asked = config.placement.gradients_to_nvme;
    return trains() && (asked == Tristate::kOn || (asked == Tristate::kAuto && moves_gradients));
  }
  // Whether it feeds a text token by token. While it trains: the texts of samples.prompts.
  bool keeps_keys_and_values() const {
    return purpose == RunPurpose::kGeneration ||
           (trains() && names == nullptr && !config.samples.prompts.empty());
  }
  bool trains() const { return purpose == RunPurpose::kTraining; }
  NumberTypes types() const {
    NumberTypes types = number_types(config.precision);
    if (config.optimizer.moments == config::MomentType::kBf16)
      types.moments = offload::ElementType::kBf16;
    return types;
  }
};

}  // namespace sluice::engine
