// Loads weights into a run that does not train, from its configuration or from a checkpoint.
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
  // Elements done, and elements to load.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};
// Loads model.init_from, and recipe.lora.adapter if the configuration has adapters.
Status load_model(const LoadModel& load);
// Loads a checkpoint; if it contains adapters, model.init_from is their base. kInvalidArgument if
// it belongs to another model, recipe or base than the configuration's.
Status load_model(const LoadModel& load, CheckpointReader& checkpoint);

}  // namespace sluice::engine
