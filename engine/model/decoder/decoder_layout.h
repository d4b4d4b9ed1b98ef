// The parameters of a decoder, derived from its spec: layouts of its units, places in their views,
// and adapters. Without LibTorch.
//
// Units in forward order: the embedding, one unit per block, the head, whose output projection is
// its own or the token embedding (tied).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"
#include "engine/model/unit_layout.h"

namespace sluice::engine {

inline constexpr int kNoParameter = -1;

// Products with the same input. Their matrices are stored in sequence, and so are their biases.
struct BlockProducts {
  int parts = 1;
  int weight = kNoParameter;  // the first part's
  int bias = kNoParameter;
  // Each part's A if it has an adapter; B follows.
  std::array<int, 4> adapters = {kNoParameter, kNoParameter, kNoParameter, kNoParameter};
};

// A norm's bias follows its gain, if it has one.
struct NormPlaces {
  int gain = kNoParameter;
  int bias = kNoParameter;
};

// Positions in UnitViews: first the model's parameters, then adapters, which have a separate
// layout.
struct BlockParameters {
  BlockProducts qkv;  // queries, keys, values; or one packed product; or DeltaNames::in
  BlockProducts projection;
  // The gate first, if there is one. With experts: of the shared one, or without a place.
  BlockProducts mlp_in;
  BlockProducts mlp_out;
  BlockProducts shared_logit;
  // Experts have matrices in sequence: [experts, hidden]; each expert's gate and up [width,
  // hidden]; and each expert's down [hidden, width].
  int router = kNoParameter;
  int expert_in = kNoParameter;   // the first expert's gate, then its up, the next one's gate, ...
  int expert_out = kNoParameter;  // the first expert's down, then the next one's, ...
  int router_bias = kNoParameter;
  int expert_in_bias = kNoParameter;  // BlockNames::expert_biases
  int expert_out_bias = kNoParameter;
  int expert_adapters = kNoParameter;  // A and B of gates and ups; those of downs follow
  int sinks = kNoParameter;            // [heads]
  NormPlaces norm1;
  NormPlaces norm2;
  std::array<NormPlaces, 2> branch_norms;
  int query_norm = kNoParameter;   // of the heads; the keys' norm follows
  int convolution = kNoParameter;  // of a delta rule: [qkv_width, 1, taps]
  int decay_bias = kNoParameter;   // [value_heads]; the decay's rate follows
  int gated_norm = kNoParameter;   // [value_dim], of the rule's output
};
BlockParameters block_parameters(const BlockSpec& block, const LoraRecipe& lora = {});

struct HeadParameters {
  int output = 0;  // follows the norm if it is borrowed
  NormPlaces norm;
};
HeadParameters head_parameters(const DecoderSpec& spec);

// Places in the embedding. The token embedding's is the last, so that its padding rows come after
// the flat order. Learned positions come before it.
int token_parameter(const DecoderSpec& spec);
inline constexpr int kPositionParameter = 0;

// The products that can have adapters, by the last part of their names, in flat order
// (ModelFamily::adapter_targets()); experts are one target, and their router has none.
std::vector<std::string_view> adapter_targets(const BlockNames& names);

// Whether a block's experts have adapters.
bool has_expert_adapters(const BlockSpec& block, const LoraRecipe& lora);

// `padded_vocab`: rows of the token embedding in its slot if it is also the output projection; 0:
// as many as the vocabulary.
UnitLayout embedding_layout(const DecoderSpec& spec, std::int64_t padded_vocab = 0);
UnitLayout block_layout(const BlockSpec& block, std::int64_t layer);
UnitLayout head_layout(const DecoderSpec& spec);
// The trained parameters of a block with adapters: pairs of A and B, in the order of their targets.
// Experts have them in PEFT's form (expert_adapters.h).
UnitLayout adapter_layout(const BlockSpec& block, const LoraRecipe& lora, std::int64_t layer);

// The spec whose blocks multiply as the options say.
DecoderSpec with_fp8(DecoderSpec spec, const ModelOptions& options);

// The whole model, with what its passes cost. A separate output projection is not padded.
ModelLayout decoder_layout(const DecoderSpec& spec, const ModelOptions& options);

}  // namespace sluice::engine
