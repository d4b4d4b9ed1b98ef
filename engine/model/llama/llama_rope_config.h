// The rotary positions in a Llama's config.json: transformers 5's rope_parameters, or rope_theta
// and rope_scaling of earlier versions. Without LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/model/hugging_face_config.h"
#include "engine/model/llama/llama_shape.h"

namespace sluice::engine {

// The values of layer_types, which may name an object of rope_parameters, too.
inline constexpr const char* kFullLayers = "full_attention";
inline constexpr const char* kSlidingLayers = "sliding_attention";

// ModelShape::numbers.
using RopeNumbers = std::map<std::string, double>;

struct RopeOfClass {
  double default_theta = 10000;   // for a file without one
  bool may_rotate_parts = false;  // and then positions are not scaled
};

// Sets the numbers of rotary positions. `context`: max_position_embeddings. Errors are left in
// `config`.
void parse_rope(HuggingFaceConfig& config, std::int64_t context, const RopeOfClass& of,
                RopeNumbers& numbers);

// rope_parameters, of a shape and its numbers.
HuggingFaceConfig::Json rope_text(const LlamaShape& shape, const RopeNumbers& numbers);

}  // namespace sluice::engine
