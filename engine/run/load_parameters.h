// Weights into the parameter offloader, for runs that do not train.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "offload/params/param_offloader.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {

struct LoadParameters {
  const ModelLayout* model = nullptr;
  offload::ParamForm form = offload::ParamForm::kSplit;
  offload::ParamOffloader* params = nullptr;
  // Elements [first, first + values.size()) of a parameter.
  std::function<Status(const ParameterSpec&, std::uint64_t first, std::span<float> values)> read;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // elements
};

// All units, in the form used for computing.
Status load_parameters(const LoadParameters& load);

}  // namespace sluice::engine
