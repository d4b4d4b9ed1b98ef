// A model's shape in a checkpoint's words, and back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/families/families.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// StoredRun::model of a shape: the numbers that every family has.
std::map<std::string, std::int64_t> stored_model(const ModelShape& shape);
// With the family's defaults for numbers that it does not say: complete() of a shape.
StoredRun complete(StoredRun run);
// "relu", "1e-06": the value of one of a family's numbers (FamilyNumberText); of any family.
std::string family_number_text(const std::string& family, const std::string& name, double value);
// Sets family, model and dropout, and the family's numbers, but for those that go without saying
// (ShapeNumber::is_written()).
void store_shape(const ModelShape& shape, StoredRun& run);
// With what the checkpoint leaves out. kCorrupt where the numbers are not those of a model;
// kUnsupported: of a family that is not there.
Result<ModelShape> stored_shape(const StoredRun& run);

// What a run trains beside its model; rank 0: the model itself. kCorrupt where it cannot be.
Result<LoraRecipe> stored_recipe(const StoredRun& run, const ModelShape& shape);
// Without the base's fingerprints.
StoredAdapters stored_adapters(const LoraRecipe& recipe);

// All parameters of a model that are trained, in the order of its units and of their flat order.
std::vector<TensorSpec> parameter_specs(const ModelLayout& model, DType dtype);
std::vector<TensorSpec> parameter_specs(const ModelShape& shape, DType dtype);

}  // namespace sluice::engine
