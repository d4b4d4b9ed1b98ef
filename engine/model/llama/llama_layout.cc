#include "engine/model/llama/llama_layout.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/llama/llama_costs.h"

namespace sluice::engine {
namespace {

constexpr float kStd = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns) {
  return {
      .name = std::move(name), .shape = {rows, columns}, .group = kDecayed, .initial_std = kStd};
}

// Of a block: nothing else adds to its gradient.
ParameterSpec product_matrix(std::string name, std::int64_t rows, std::int64_t columns) {
  ParameterSpec spec = matrix(std::move(name), rows, columns);
  spec.gradient_is_product = true;
  return spec;
}

ParameterSpec vector(std::string name, std::int64_t elements, float value) {
  return {.name = std::move(name),
          .shape = {elements},
          .group = kUndecayed,
          .initial_std = 0,
          .initial_value = value};
}

constexpr float kGain = 1;
constexpr float kBias = 0;

// One behind the other, and where they are: `place` is the first one's.
class Parameters {
 public:
  explicit Parameters(std::string prefix) : prefix_(std::move(prefix)) { layout_.name = prefix_; }

  void matrices(int& place, const std::vector<std::pair<std::string, std::int64_t>>& rows,
                std::int64_t columns) {
    place = next();
    for (const auto& [name, of_name] : rows)
      layout_.add(product_matrix(prefix_ + "." + name + ".weight", of_name, columns));
  }
  void vectors(int& place, const std::vector<std::pair<std::string, std::int64_t>>& sizes,
               float value) {
    place = next();
    for (const auto& [name, of_name] : sizes)
      layout_.add(vector(prefix_ + "." + name, of_name, value));
  }
  UnitLayout take() { return std::move(layout_); }

 private:
  int next() const { return static_cast<int>(layout_.parameters.size()); }

  std::string prefix_;
  UnitLayout layout_;
};

struct PlacedBlock {
  UnitLayout layout;
  LlamaBlockParameters places;
};

PlacedBlock placed_block(const LlamaShape& shape, std::int64_t layer) {
  Parameters made("layers." + std::to_string(layer));
  LlamaBlockParameters places;
  made.matrices(places.query,
                {{"self_attn.q_proj", shape.query_width()},
                 {"self_attn.k_proj", shape.key_width()},
                 {"self_attn.v_proj", shape.key_width()}},
                shape.hidden);
  made.matrices(places.projection, {{"self_attn.o_proj", shape.hidden}}, shape.query_width());
  made.matrices(places.gate, {{"mlp.gate_proj", shape.ffn}, {"mlp.up_proj", shape.ffn}},
                shape.hidden);
  made.matrices(places.down, {{"mlp.down_proj", shape.hidden}}, shape.ffn);
  made.vectors(places.norm1, {{"input_layernorm.weight", shape.hidden}}, kGain);
  made.vectors(places.norm2, {{"post_attention_layernorm.weight", shape.hidden}}, kGain);
  if (shape.head_norms)
    made.vectors(
        places.query_norm,
        {{"self_attn.q_norm.weight", shape.head_dim}, {"self_attn.k_norm.weight", shape.head_dim}},
        kGain);
  if (shape.qkv_bias)
    made.vectors(places.query_bias,
                 {{"self_attn.q_proj.bias", shape.query_width()},
                  {"self_attn.k_proj.bias", shape.key_width()},
                  {"self_attn.v_proj.bias", shape.key_width()}},
                 kBias);
  if (shape.output_bias)
    made.vectors(places.projection_bias, {{"self_attn.o_proj.bias", shape.hidden}}, kBias);
  if (shape.mlp_bias) {
    made.vectors(places.gate_bias,
                 {{"mlp.gate_proj.bias", shape.ffn}, {"mlp.up_proj.bias", shape.ffn}}, kBias);
    made.vectors(places.down_bias, {{"mlp.down_proj.bias", shape.hidden}}, kBias);
  }
  return {made.take(), places};
}

constexpr int kToken = 0;  // in the embedding

}  // namespace

LlamaBlockParameters llama_block_parameters(const LlamaShape& shape) {
  return placed_block(shape, 0).places;
}

LlamaHeadParameters llama_head_parameters(const LlamaShape& shape) {
  return shape.tied ? LlamaHeadParameters{.output = 1, .norm = 0}
                    : LlamaHeadParameters{.output = 0, .norm = 1};
}

UnitLayout llama_embedding_layout(const LlamaShape& shape, std::int64_t padded_vocab) {
  UnitLayout layout{.name = "embedding"};
  layout.add(matrix("embed_tokens.weight", shape.vocab, shape.hidden));
  // A lookup needs no padding, a product does.
  if (shape.tied && padded_vocab != 0) layout.pad_last(padded_vocab);
  return layout;
}

UnitLayout llama_block_layout(const LlamaShape& shape, std::int64_t layer) {
  return placed_block(shape, layer).layout;
}

UnitLayout llama_head_layout(const LlamaShape& shape) {
  UnitLayout layout{.name = "head"};
  if (!shape.tied) layout.add(matrix("lm_head.weight", shape.vocab, shape.hidden));
  layout.add(vector("norm.weight", shape.hidden, kGain));
  return layout;
}

ModelLayout llama_layout(const ModelOptions& options) {
  const LlamaShape shape = llama_shape(options.shape);
  const auto full = llama_block_kind(shape, /*windowed=*/false);
  const auto windowed = llama_block_kind(shape, /*windowed=*/true);
  std::vector<ModelLayout::Unit> units;
  units.push_back({.kind = llama_embedding_kind(shape),
                   .layout = llama_embedding_layout(shape, options.padded_vocab),
                   .borrowed = {}});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.push_back({.kind = shape.window.has(layer) ? windowed : full,
                     .layout = llama_block_layout(shape, layer),
                     .borrowed = {}});
  ModelLayout::Unit head = {.kind = llama_head_kind(shape, options.padded_vocab),
                            .layout = llama_head_layout(shape),
                            .borrowed = {}};
  if (shape.tied) head.borrowed.push_back({.unit = 0, .parameter = kToken});
  units.push_back(std::move(head));
  return {{.hidden = shape.hidden, .vocab = shape.vocab}, std::move(units)};
}

}  // namespace sluice::engine
