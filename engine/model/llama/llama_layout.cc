#include "engine/model/llama/llama_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
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

// A matrix of a block: only one product is added to its gradient per micro-batch.
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

// Initialised as in PEFT: A like torch's Linear, B zero, so that training starts from the unchanged
// model.
ParameterSpec adapter_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                             bool is_first) {
  ParameterSpec spec = product_matrix(std::move(name), rows, columns);
  spec.initial_std = 0;
  if (is_first) spec.initial_bound = 1 / std::sqrt(static_cast<float>(columns));
  return spec;
}

constexpr float kGain = 1;
constexpr float kBias = 0;

// Appends parameters and records their positions: `place` is the first one's.
class Parameters {
 public:
  explicit Parameters(std::string prefix) : prefix_(std::move(prefix)) { layout_.name = prefix_; }

  void matrices(LlamaProducts& products,
                const std::vector<std::pair<std::string, std::int64_t>>& rows,
                std::int64_t columns) {
    products.weight = next();
    products.parts = static_cast<int>(rows.size());
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
  LlamaBlockParameters indices;
};

PlacedBlock placed_block(const LlamaShape& shape, std::int64_t layer) {
  Parameters made("layers." + std::to_string(layer));
  LlamaBlockParameters indices;
  made.matrices(indices.qkv,
                {{"self_attn.q_proj", shape.query_width()},
                 {"self_attn.k_proj", shape.key_width()},
                 {"self_attn.v_proj", shape.key_width()}},
                shape.hidden);
  made.matrices(indices.projection, {{"self_attn.o_proj", shape.hidden}}, shape.query_width());
  made.matrices(indices.gated, {{"mlp.gate_proj", shape.ffn}, {"mlp.up_proj", shape.ffn}},
                shape.hidden);
  made.matrices(indices.down, {{"mlp.down_proj", shape.hidden}}, shape.ffn);
  made.vectors(indices.norm1, {{"input_layernorm.weight", shape.hidden}}, kGain);
  made.vectors(indices.norm2, {{"post_attention_layernorm.weight", shape.hidden}}, kGain);
  if (shape.head_norms)
    made.vectors(
        indices.query_norm,
        {{"self_attn.q_norm.weight", shape.head_dim}, {"self_attn.k_norm.weight", shape.head_dim}},
        kGain);
  if (shape.qkv_bias)
    made.vectors(indices.qkv.bias,
                 {{"self_attn.q_proj.bias", shape.query_width()},
                  {"self_attn.k_proj.bias", shape.key_width()},
                  {"self_attn.v_proj.bias", shape.key_width()}},
                 kBias);
  if (shape.output_bias)
    made.vectors(indices.projection.bias, {{"self_attn.o_proj.bias", shape.hidden}}, kBias);
  if (shape.mlp_bias) {
    made.vectors(indices.gated.bias,
                 {{"mlp.gate_proj.bias", shape.ffn}, {"mlp.up_proj.bias", shape.ffn}}, kBias);
    made.vectors(indices.down.bias, {{"mlp.down_proj.bias", shape.hidden}}, kBias);
  }
  return {made.take(), indices};
}

constexpr int kToken = 0;  // in the embedding

// In the order of the parameters.
constexpr std::array<std::string_view, 7> kTargets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                      "gate_proj", "up_proj", "down_proj"};

struct TargetShape {
  const char* module;
  std::int64_t rows;
  std::int64_t columns;
};

TargetShape target_shape(const LlamaShape& shape, std::size_t target) {
  const bool is_attention = target < 4;
  const std::int64_t query = shape.query_width();
  const std::int64_t key = shape.key_width();
  const std::array<std::array<std::int64_t, 2>, kTargets.size()> sizes = {
      {{query, shape.hidden},
       {key, shape.hidden},
       {key, shape.hidden},
       {shape.hidden, query},
       {shape.ffn, shape.hidden},
       {shape.ffn, shape.hidden},
       {shape.hidden, shape.ffn}}};
  return {is_attention ? "self_attn" : "mlp", sizes[target][0], sizes[target][1]};
}

bool is_target(const LoraRecipe& lora, std::size_t target) {
  return std::find(lora.targets.begin(), lora.targets.end(), kTargets[target]) !=
         lora.targets.end();
}

// The entry for the target's adapter.
int& adapter_of(LlamaBlockParameters& indices, std::size_t target) {
  if (target < 3) return indices.qkv.adapters[target];
  if (target == 3) return indices.projection.adapters[0];
  if (target < 6) return indices.gated.adapters[target - 4];
  return indices.down.adapters[0];
}

}  // namespace

LlamaBlockParameters llama_block_parameters(const LlamaShape& shape, const LoraRecipe& lora) {
  PlacedBlock block = placed_block(shape, 0);
  int next = static_cast<int>(block.layout.parameters.size());
  for (std::size_t target = 0; lora.exists() && target < kTargets.size(); ++target) {
    if (!is_target(lora, target)) continue;
    adapter_of(block.indices, target) = next;
    next += 2;
  }
  return block.indices;
}

std::span<const std::string_view> llama_adapter_targets() { return kTargets; }

LlamaHeadParameters llama_head_parameters(const LlamaShape& shape) {
  return shape.tied ? LlamaHeadParameters{.output = 1, .norm = 0}
                    : LlamaHeadParameters{.output = 0, .norm = 1};
}

UnitLayout llama_embedding_layout(const LlamaShape& shape, std::int64_t padded_vocab) {
  UnitLayout layout{.name = "embedding"};
  layout.add(matrix("embed_tokens.weight", shape.vocab, shape.hidden));
  // A lookup needs no padding, but a product does.
  if (shape.tied && padded_vocab != 0) layout.pad_last(padded_vocab);
  return layout;
}

UnitLayout llama_block_layout(const LlamaShape& shape, std::int64_t layer) {
  return placed_block(shape, layer).layout;
}

UnitLayout llama_adapter_layout(const LlamaShape& shape, const LoraRecipe& lora,
                                std::int64_t layer) {
  UnitLayout layout{.name = "layers." + std::to_string(layer)};
  for (std::size_t target = 0; target < kTargets.size(); ++target) {
    if (!is_target(lora, target)) continue;
    const TargetShape of = target_shape(shape, target);
    const std::string name =
        layout.name + "." + of.module + "." + std::string(kTargets[target]) + ".lora_";
    layout.add(adapter_matrix(name + "A.weight", lora.rank, of.columns, /*is_first=*/true));
    layout.add(adapter_matrix(name + "B.weight", of.rows, lora.rank, /*is_first=*/false));
  }
  return layout;
}

UnitLayout llama_head_layout(const LlamaShape& shape) {
  UnitLayout layout{.name = "head"};
  if (!shape.tied) layout.add(matrix("lm_head.weight", shape.vocab, shape.hidden));
  layout.add(vector("norm.weight", shape.hidden, kGain));
  return layout;
}

namespace {

// Freezes all parameters and adds adapters to be trained instead.
void freeze(const LlamaShape& shape, const LoraRecipe& lora,
            std::vector<ModelLayout::Unit>& units) {
  for (ModelLayout::Unit& unit : units) {
    unit.frozen = std::move(unit.layout);
    unit.layout = UnitLayout{.name = unit.frozen.name};
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units[static_cast<std::size_t>(layer) + 1].layout = llama_adapter_layout(shape, lora, layer);
}

}  // namespace

ModelLayout llama_layout(const ModelOptions& options) {
  const LlamaShape shape = llama_shape(options.shape);
  const LoraRecipe& lora = options.lora;
  const auto full = llama_block_kind(shape, lora, /*windowed=*/false);
  const auto windowed = llama_block_kind(shape, lora, /*windowed=*/true);
  std::vector<ModelLayout::Unit> units;
  units.push_back({.kind = llama_embedding_kind(shape, lora),
                   .layout = llama_embedding_layout(shape, options.padded_vocab),
                   .borrowed = {}});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    units.push_back({.kind = shape.window.has(layer) ? windowed : full,
                     .layout = llama_block_layout(shape, layer),
                     .borrowed = {}});
  ModelLayout::Unit head = {.kind = llama_head_kind(shape, lora, options.padded_vocab),
                            .layout = llama_head_layout(shape),
                            .borrowed = {}};
  if (shape.tied) head.borrowed.push_back({.unit = 0, .parameter = kToken});
  units.push_back(std::move(head));
  if (lora.exists()) freeze(shape, lora, units);
  return {{.hidden = shape.hidden, .vocab = shape.vocab}, std::move(units)};
}

}  // namespace sluice::engine
