// The units of a Llama and their parameters, under Hugging Face's names. Without LibTorch.
//
// Units in forward order: the embedding, one unit per block, the head, whose output projection is
// its own or the token embedding (tied). All matrices are [out, in], as torch's Linear has them.
#pragma once

#include <cstdint>

#include "engine/model/llama/llama_shape.h"
#include "engine/model/model_layout.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

// Positions in UnitLayout::parameters and in UnitViews. Queries, keys and values lie one behind the
// other, as do the feed-forward's gate and what it lets through ("up"), and likewise their biases:
// joined_rows.h makes one product of them where their sizes leave no gap.
struct LlamaBlockParameters {
  static constexpr int kNone = -1;

  int query = kNone;  // key and value follow
  int projection = kNone;
  int gate = kNone;  // up follows
  int down = kNone;
  int norm1 = kNone;
  int norm2 = kNone;
  int query_norm = kNone;  // of heads; the keys' follows
  int query_bias = kNone;  // the keys' and the values' follow
  int projection_bias = kNone;
  int gate_bias = kNone;  // that of up follows
  int down_bias = kNone;
};
LlamaBlockParameters llama_block_parameters(const LlamaShape& shape);

struct LlamaHeadParameters {
  int output = 0;  // behind the norm where it is borrowed
  int norm = 0;
};
LlamaHeadParameters llama_head_parameters(const LlamaShape& shape);

UnitLayout llama_embedding_layout(const LlamaShape& shape, std::int64_t padded_vocab = 0);
UnitLayout llama_block_layout(const LlamaShape& shape, std::int64_t layer);
UnitLayout llama_head_layout(const LlamaShape& shape);
// The whole model, with its costs. An output projection of its own is not padded.
ModelLayout llama_layout(const ModelOptions& options);

}  // namespace sluice::engine
