// The units of a GPT-2 and their parameters, under Hugging Face's names. Without LibTorch.
//
// Units in forward order: the embedding, one unit per block, the head. The output projection is the
// token embedding (tied), so the head itself has only the final norm.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/gpt_shape.h"
#include "engine/model/model_layout.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

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
namespace head_parameter {
enum : int { kNormWeight, kNormBias, kOutput };  // kOutput: borrowed, the token embedding
}

// `padded_vocab`: rows of the token embedding in its slot; 0: as many as the vocabulary. The shape
// must be valid.
UnitLayout gpt_embedding_layout(const GptShape& shape, std::int64_t padded_vocab = 0);
UnitLayout gpt_block_layout(const GptShape& shape, std::int64_t layer);
UnitLayout gpt_head_layout(const GptShape& shape);
std::vector<UnitLayout> gpt_layouts(const GptShape& shape, std::int64_t padded_vocab = 0);

struct GptModelOptions {
  GptShape shape;
  std::int64_t padded_vocab = 0;  // rows of the token embedding in its slot; 0: the vocabulary
  std::int64_t chunk_rows = 0;    // of the loss; 0: by the shape
};
// The whole model, with its costs.
ModelLayout gpt_model_layout(const GptModelOptions& options);

}  // namespace sluice::engine
