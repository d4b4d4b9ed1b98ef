// Parameters of units that train adapters beside a frozen model: those of the base, which come and
// go and never change, and the adapters, which are trained. Each is a UnitParameters of its own
// layout; passes are given both (with_adapters()), and the optimizer sees the adapters alone.
#pragma once

#include <memory>

#include "engine/step/unit_parameters.h"

namespace sluice::engine {

// `model` must outlive it. `base` is of model.base(), `adapters` of the model.
std::unique_ptr<UnitParameters> make_adapted_unit_parameters(
    const ModelLayout& model, std::unique_ptr<UnitParameters> base,
    std::unique_ptr<UnitParameters> adapters);

}  // namespace sluice::engine
