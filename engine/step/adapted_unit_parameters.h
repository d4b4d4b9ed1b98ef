// Parameters of units that train adapters on a frozen model. The base is fetched and released but
// never changes; the adapters are trained. Each is a UnitParameters with its own layout. Passes get
// both (with_adapters()); the optimizer sees only the adapters.
#pragma once

#include <memory>

#include "engine/step/unit_parameters.h"

namespace sluice::engine {

// `model` must outlive it. `base` has the layout model.base(), `adapters` the layout `model`.
std::unique_ptr<UnitParameters> make_adapted_unit_parameters(
    const ModelLayout& model, std::unique_ptr<UnitParameters> base,
    std::unique_ptr<UnitParameters> adapters);

}  // namespace sluice::engine
