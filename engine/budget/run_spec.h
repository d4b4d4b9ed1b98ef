// RunSpec: what a plan of memory is about: a configuration, its model as data, and what the run is
// for. The types of numbers that follow.
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

// Both must outlive it.
struct RunSpec {
  const config::Config& config;
  const ModelLayout& model;  // of configured_layout() for the same device
  RunPurpose purpose = RunPurpose::kTraining;
  bool on_gpu = false;
  // Of a wave, as the planner chose it where the configuration leaves it open; 0: all of a step's.
  std::int64_t wave_micro_batches = 0;
  offload::RankPart ranks = {};  // which one plans; of a run that trains
  // Of a module of the Python package: how files call its parameters. Null: a family's model, which
  // the program has by itself.
  const ParameterNames* names = nullptr;
  // A unit's sums are put away and taken up again within a micro-batch, whose passes are not the
  // engine's.
  bool keeps_sums = false;

  // Of what is trained of a unit.
  offload::UnitShard shard(int unit) const {
    return offload::shard_of(model.layout(unit).elements, ranks);
  }
  // Of what is frozen: at stage 3 as of what is trained, else each rank has all of it.
  offload::RankPart base_ranks() const {
    return config.zero.stage == 3 ? ranks : offload::RankPart();
  }
  offload::Waves waves() const {
    const std::int64_t all = config.batch.accumulation;
    const std::int64_t asked = config.placement.wave_micro_batches;
    const std::int64_t chosen = asked > 0 ? asked : wave_micro_batches;
    return {.micro_batches = all, .of_a_wave = chosen > 0 ? std::min(chosen, all) : all};
  }
  // Of this rank's micro-batches: its lanes are as many as any other's.
  offload::SumOrder sum_order() const {
    return offload::SumOrder({.micro_batches = config.batch.accumulation,
                              .lanes = config.run.lanes / ranks.world,
                              .rounds = config.run.rounds,
                              .ranks = ranks});
  }
  // Of a unit's gradients.
  offload::HeldSums sums() const {
    if (!trains()) return {};
    offload::HeldSums held = sum_order().held(waves());
    if (keeps_sums || gradients_on_nvme()) held.kept = std::max(held.kept, held.levels);
    return held;
  }
  bool gradients_on_nvme() const {
    return trains() && config.placement.gradients_to_nvme == Tristate::kOn;
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
