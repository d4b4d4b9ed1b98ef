#include "engine/model/decoder/block_costs.h"

#include <algorithm>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {

AdapterNumbers adapter_numbers(const BlockSpec& block, const LoraRecipe& lora) {
  AdapterNumbers numbers;
  if (!lora.exists()) return numbers;
  const UnitLayout layout = adapter_layout(block, lora, 0);
  for (std::size_t a = 0; a < layout.parameters.size(); a += 2) {
    numbers.in += static_cast<double>(layout.parameters[a].elements);
    numbers.out += static_cast<double>(layout.parameters[a + 1].elements);
    numbers.widest_in = std::max(numbers.widest_in, layout.parameters[a].shape.back());
    numbers.widest_out = std::max(numbers.widest_out, layout.parameters[a + 1].shape.front());
  }
  return numbers;
}

AttentionCosts attention_costs(const BlockSpec& block) {
  return {.heads = block.attention.heads,
          .kv_heads = block.attention.kv_heads,
          .head_dim = block.attention.head_dim,
          .window = block.attention.window};
}

Flops block_flops(const BlockSpec& block, const AdapterNumbers& adapters, std::int64_t tokens) {
  const auto hidden = static_cast<double>(block.hidden);
  const double mlp_in = 2 * hidden * static_cast<double>(block.mlp.in_width());
  const double mlp_out = 2 * hidden * static_cast<double>(block.mlp.width);
  const double weights =
      2 * hidden *
          static_cast<double>(block.attention.qkv_width() + block.attention.query_width()) +
      mlp_in + mlp_out;
  const double scores = 2 * attention_costs(block).score_products(tokens);
  const double added = 2 * (adapters.in + adapters.out);
  // The gradients of the trained weights; for adapters also A's product, which is recomputed.
  const double gradients = added > 0 ? 2 * added + 2 * adapters.in : weights;
  // If backward computes the feed-forward's first products in pieces, recompute() does not. Their
  // adapters are not counted here.
  const double in_pieces = RowPieces(tokens, block.piece_rows).cut() ? mlp_in : 0;
  // Attention is two products in forward. Backward computes the scores again, and four more
  // products.
  return {.forward = weights + added + 2 * scores,
          .backward = weights + gradients + 5 * scores + in_pieces,
          .recompute = weights + added - mlp_out + 2 * scores - in_pieces};
}

std::uint64_t block_saved_bytes(const BlockSpec& block, const PassShape& pass) {
  constexpr std::int64_t kFp32Bytes = 4;
  const bool cut = RowPieces(pass.rows(), block.piece_rows).cut();
  // A mean and a reciprocal deviation, or one number, of both norms or of the first.
  const std::int64_t of_norm = block.norm == NormKind::kLayer ? 2 : 1;
  const std::int64_t statistics = of_norm * (cut ? 1 : 2);
  const std::int64_t numbers = block.attention.qkv_width() + block.attention.query_width() +
                               block.hidden + (cut ? 0 : block.mlp.in_width());
  return static_cast<std::uint64_t>(
      pass.rows() *
      (numbers * pass.number_bytes + (statistics + block.attention.heads) * kFp32Bytes));
}

}  // namespace sluice::engine
