// The units of a Llama and their parameters, under Hugging Face's names. Without LibTorch.
//
// Units in forward order: the embedding, one unit per block, the head, whose output projection is
// separate or the token embedding (tied). All matrices are [out, in], as in torch's Linear.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/model/llama/llama_shape.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_layout.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

inline constexpr int kNoParameter = -1;

// Products with the same input. Their matrices are stored in sequence, and so are their biases.
// llama_products.cc computes one product of them if their sizes leave no gap.
struct LlamaProducts {
  int parts = 1;
  int weight = kNoParameter;  // the first part's
  int bias = kNoParameter;
  // Each part's A if it has an adapter; B follows.
  std::array<int, 3> adapters = {kNoParameter, kNoParameter, kNoParameter};
};

// Positions in UnitViews: first the model's parameters, then adapters, which have a separate
// layout.
struct LlamaBlockParameters {
  LlamaProducts qkv;  // queries, keys, values
  LlamaProducts projection;
  LlamaProducts gated;  // the feed-forward's gate, and what it multiplies ("up")
  LlamaProducts down;
  int norm1 = kNoParameter;
  int norm2 = kNoParameter;
  int query_norm = kNoParameter;  // of the heads; the keys' norm follows
};
LlamaBlockParameters llama_block_parameters(const LlamaShape& shape, const LoraRecipe& lora);

// The products of a block by PEFT's names, in their order: ModelFamily::adapter_targets().
std::span<const std::string_view> llama_adapter_targets();

struct LlamaHeadParameters {
  int output = 0;  // follows the norm if it is borrowed
  int norm = 0;
};
LlamaHeadParameters llama_head_parameters(const LlamaShape& shape);

UnitLayout llama_embedding_layout(const LlamaShape& shape, std::int64_t padded_vocab = 0);
UnitLayout llama_block_layout(const LlamaShape& shape, std::int64_t layer);
UnitLayout llama_head_layout(const LlamaShape& shape);
// The trained parameters of a block with adapters: pairs of A and B, in the order of their targets.
UnitLayout llama_adapter_layout(const LlamaShape& shape, const LoraRecipe& lora,
                                std::int64_t layer);
// The whole model, with its costs. A separate output projection is not padded.
ModelLayout llama_layout(const ModelOptions& options);

}  // namespace sluice::engine
