// The units of a GPT-2 and their parameters, under Hugging Face's names. Without LibTorch.
//
// Units in forward order: the embedding, one unit per block, the head, whose output projection is
// the token embedding (tied) or its own.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

inline std::int64_t gpt2_head_dim(const ModelShape& shape) { return shape.hidden / shape.heads; }

// Positions in UnitLayout::parameters and in UnitViews.
namespace embedding_parameter {
enum : int { kPosition, kToken };
}
namespace block_parameter {
enum : int {
  kAttentionWeight,
  kProjectionWeight,
  kFcWeight,
  kFcProjectionWeight,
  kNorm1Weight,
  kNorm1Bias,
  kAttentionBias,
  kProjectionBias,
  kNorm2Weight,
  kNorm2Bias,
  kFcBias,
  kFcProjectionBias
};
}
struct Gpt2HeadParameters {
  int output = 0;  // follows the norm if it is borrowed
  int norm_weight = 0;
  int norm_bias = 0;
};
Gpt2HeadParameters gpt2_head_parameters(const ModelShape& shape);

// `padded_vocab`: rows of the token embedding in its slot if it is also the output projection; 0:
// as many as the vocabulary. The shape must be valid.
UnitLayout gpt2_embedding_layout(const ModelShape& shape, std::int64_t padded_vocab = 0);
UnitLayout gpt2_block_layout(const ModelShape& shape, std::int64_t layer);
UnitLayout gpt2_head_layout(const ModelShape& shape);
// The whole model, with its costs. A separate output projection is not padded.
ModelLayout gpt2_layout(const ModelOptions& options);

}  // namespace sluice::engine
