// Finds the code of a family's units by the family's name: the half of the table that needs
// LibTorch.
#pragma once

#include <memory>
#include <string_view>

#include "engine/model/model.h"

namespace sluice::engine {

using MakeUnits = ModelUnits (*)(const ModelOptions& options);

// Complements add_family(); call it before the first use of a model.
void add_units(std::string_view family, MakeUnits make);

// Throws std::invalid_argument with validate()'s sentence, or with one that says that the family
// has no units here.
std::unique_ptr<Model> make_model(const ModelOptions& options);

}  // namespace sluice::engine
