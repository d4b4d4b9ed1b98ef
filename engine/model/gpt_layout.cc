#include "engine/model/gpt_layout.h"

#include <cmath>
#include <string>
#include <utility>

namespace sluice::engine {
namespace {

constexpr float kStd = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t rows, std::int64_t columns, float std = kStd) {
  return {.name = std::move(name), .shape = {rows, columns}, .group = kDecayed, .initial_std = std};
}

// Of a block: nothing else adds to its gradient.
ParameterSpec product_matrix(std::string name, std::int64_t rows, std::int64_t columns,
                             float std = kStd) {
  ParameterSpec spec = matrix(std::move(name), rows, columns, std);
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

}  // namespace

UnitLayout gpt_embedding_layout(const GptShape& shape, std::int64_t padded_vocab) {
  UnitLayout layout{.name = "embedding"};
  layout.add(matrix("wpe.weight", shape.context_tokens, shape.hidden));
  // Last, so that the rows that pad it lie behind the flat order.
  layout.add(matrix("wte.weight", shape.vocab, shape.hidden));
  if (padded_vocab != 0) layout.pad_last(padded_vocab);
  return layout;
}

UnitLayout gpt_block_layout(const GptShape& shape, std::int64_t layer) {
  const std::string prefix = "h." + std::to_string(layer);
  const std::int64_t hidden = shape.hidden;
  // Each block adds two branches to the residual stream, whose variance should not grow with them.
  const float branch_std = kStd / std::sqrt(2.0F * static_cast<float>(shape.layers));
  UnitLayout layout{.name = prefix};
  layout.add(product_matrix(prefix + ".attn.c_attn.weight", hidden, 3 * hidden));
  layout.add(product_matrix(prefix + ".attn.c_proj.weight", hidden, hidden, branch_std));
  layout.add(product_matrix(prefix + ".mlp.c_fc.weight", hidden, shape.ffn()));
  layout.add(product_matrix(prefix + ".mlp.c_proj.weight", shape.ffn(), hidden, branch_std));
  layout.add(vector(prefix + ".ln_1.weight", hidden, 1));
  layout.add(vector(prefix + ".ln_1.bias", hidden, 0));
  layout.add(vector(prefix + ".attn.c_attn.bias", 3 * hidden, 0));
  layout.add(vector(prefix + ".attn.c_proj.bias", hidden, 0));
  layout.add(vector(prefix + ".ln_2.weight", hidden, 1));
  layout.add(vector(prefix + ".ln_2.bias", hidden, 0));
  layout.add(vector(prefix + ".mlp.c_fc.bias", shape.ffn(), 0));
  layout.add(vector(prefix + ".mlp.c_proj.bias", hidden, 0));
  return layout;
}

UnitLayout gpt_head_layout(const GptShape& shape) {
  UnitLayout layout{.name = "head"};
  layout.add(vector("ln_f.weight", shape.hidden, 1));
  layout.add(vector("ln_f.bias", shape.hidden, 0));
  return layout;
}

std::vector<UnitLayout> gpt_layouts(const GptShape& shape, std::int64_t padded_vocab) {
  std::vector<UnitLayout> layouts = {gpt_embedding_layout(shape, padded_vocab)};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layouts.push_back(gpt_block_layout(shape, layer));
  }
  layouts.push_back(gpt_head_layout(shape));
  return layouts;
}

}  // namespace sluice::engine
