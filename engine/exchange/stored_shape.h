// A model's shape in a checkpoint's words, and back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/model/gpt_shape.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// StoredRun::model of a shape.
std::map<std::string, std::int64_t> stored_model(const GptShape& shape);
// kCorrupt where the numbers are not those of a model.
Result<GptShape> stored_shape(const StoredRun& run);

// The parameters of a model of that shape, in flat order.
std::vector<TensorSpec> parameter_specs(const GptShape& shape, DType dtype);

}  // namespace sluice::engine
