// Converts between a model's shape and its description in a checkpoint.
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

// StoredRun::model for a shape: the numbers that every family has.
std::map<std::string, std::int64_t> stored_model(const ModelShape& shape);
// Adds the family's defaults for missing numbers, as complete() does for a shape.
StoredRun complete(StoredRun run);
// The text of one of a family's numbers, such as "relu" or "1e-06" (FamilyNumberText); any family.
std::string family_number_text(const std::string& family, const std::string& name, double value);
// Sets family, model and dropout, and the family's numbers except defaults that are not written
// (ShapeNumber::should_serialise()).
void store_shape(const ModelShape& shape, StoredRun& run);
// Includes defaults for what the checkpoint leaves out. kCorrupt if the numbers do not describe a
// model; kUnsupported: an unknown family.
Result<ModelShape> stored_shape(const StoredRun& run);

// The adapters of a run; rank 0: it trains the model itself. kCorrupt if the recipe is invalid.
Result<LoraRecipe> stored_recipe(const StoredRun& run, const ModelShape& shape);
// Without the base's fingerprints.
StoredAdapters stored_adapters(const LoraRecipe& recipe);

// All trained parameters of a model, ordered by unit and by flat order within it.
std::vector<TensorSpec> parameter_specs(const ModelLayout& model, DType dtype);
std::vector<TensorSpec> parameter_specs(const ModelShape& shape, DType dtype);

}  // namespace sluice::engine
