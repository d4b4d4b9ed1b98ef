// Weights into a run that does not train: from what its configuration names, or from a checkpoint.
#pragma once

#include <cstdint>
#include <functional>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/config/config.h"
#include "engine/model/model_shape.h"
#include "engine/runtime/resources.h"

namespace sluice::engine {

struct LoadModel {
  Resources& to;
  const config::Config& config;
  const ModelShape& shape;
  // Elements done, out of how many there are to load.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};
// model.init_from, or recipe.lora.adapter beside it.
Status load_model(const LoadModel& load);
// What a checkpoint holds, of adapters beside model.init_from. kInvalidArgument where it is of
// another model, recipe or base than the configuration's.
Status load_model(const LoadModel& load, CheckpointReader& checkpoint);

}  // namespace sluice::engine
