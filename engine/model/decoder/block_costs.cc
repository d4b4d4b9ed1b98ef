#include "engine/model/decoder/block_costs.h"

#include <algorithm>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/decoder/experts_costs.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {

AdapterNumbers adapter_numbers(const BlockSpec& block, const LoraRecipe& lora) {
  AdapterNumbers numbers;
  if (!lora.exists()) return numbers;
  const UnitLayout layout = adapter_layout(block, lora, 0);
  constexpr std::size_t kOfExperts = 4;  // the last ones
  const std::size_t dense =
      layout.parameters.size() - (has_expert_adapters(block, lora) ? kOfExperts : 0);
  for (std::size_t a = 0; a < layout.parameters.size(); a += 2) {
    const double used = a < dense ? 1
                                  : static_cast<double>(block.experts.per_token) /
                                        static_cast<double>(block.experts.count);
    numbers.in += used * static_cast<double>(layout.parameters[a].elements);
    numbers.out += used * static_cast<double>(layout.parameters[a + 1].elements);
    if (a >= dense) continue;
    numbers.widest_in = std::max(numbers.widest_in, layout.parameters[a].shape.back());
    numbers.widest_out = std::max(numbers.widest_out, layout.parameters[a + 1].shape.front());
  }
  return numbers;
}

std::uint64_t block_idle_elements(const BlockSpec& block) {
  const ExpertsSpec& experts = block.experts;
  constexpr std::int64_t kMatrices = 3;
  const std::int64_t biases = experts.bias ? 2 * experts.width + block.hidden : 0;
  return static_cast<std::uint64_t>((experts.count - experts.per_token) *
                                    (kMatrices * block.hidden * experts.width + biases));
}

std::int64_t delta_backward_numbers(const DeltaHeads& heads, std::int64_t chunk) {
  const std::int64_t states = 3 * heads.key_dim * heads.value_dim / chunk;
  return 20 * heads.key_dim + 12 * heads.value_dim + 13 * chunk + states;
}

AttentionCosts attention_costs(const BlockSpec& block) {
  return {.heads = block.attention.heads,
          .kv_heads = block.attention.kv_heads,
          .head_dim = block.attention.head_dim,
          .window = block.attention.window,
          .capped = block.attention.soft_cap > 0};
}

Flops block_flops(const BlockSpec& block, const AdapterNumbers& adapters, std::int64_t tokens) {
  const auto hidden = static_cast<double>(block.hidden);
  const double mlp_in = 2 * hidden * static_cast<double>(block.mlp_in_width());
  const double mlp_out = 2 * hidden * static_cast<double>(block.mlp_width());
  const double router = 2 * hidden * static_cast<double>(block.logits());
  const double weights =
      2 * hidden * static_cast<double>(block.mixer_in_width() + block.mixer_width()) + router +
      mlp_in + mlp_out;
  const double scores =
      block.delta.exists() ? 0 : 2 * attention_costs(block).score_products(tokens);
  const double added = 2 * (adapters.in + adapters.out);
  // The gradients of the trained weights; for adapters also A's product, which is recomputed.
  const double gradients = added > 0 ? 2 * added + 2 * adapters.in : weights;
  // If backward computes the feed-forward's first products in pieces, recompute() does not. Their
  // adapters are not counted here.
  const double in_pieces = RowPieces(tokens, block.piece_rows).cut() ? router + mlp_in : 0;
  // The norm of the last branch needs what recompute() leaves out.
  const double in_norm = block.norms_branches() ? mlp_out : 0;
  // Attention is two products in forward. Backward computes the scores again, and four more
  // products.
  return {.forward = weights + added + 2 * scores,
          .backward = weights + gradients + 5 * scores + in_pieces + in_norm,
          .recompute = weights + added - mlp_out + 2 * scores - in_pieces};
}

// A delta rule's bytes for each token. Its products are too narrow to be bound by anything else.
Traffic delta_traffic(const BlockSpec& block, std::int64_t number_bytes) {
  if (!block.delta.exists()) return {};
  const DeltaHeads& heads = block.delta.heads;
  // The convolution and the gate read and write rows; backward does so for gradients, too.
  const auto rows =
      static_cast<double>((2 * heads.qkv_width() + 3 * heads.value_width()) * number_bytes);
  const auto fp32 =
      static_cast<double>(heads.value_heads * delta_backward_numbers(heads, kDeltaChunk) * 4);
  return {.forward = rows + fp32, .backward = 2 * rows + 3 * fp32};
}

Traffic block_traffic(const BlockSpec& block, std::int64_t number_bytes) {
  const AttentionSpec& attention = block.attention;
  const auto hidden = static_cast<double>(block.hidden);
  const auto mlp = static_cast<double>(block.mlp_width());
  const auto turned = static_cast<double>(attention.query_width() + attention.key_width());
  const bool turns = attention.rope.exists() && !block.delta.exists();
  const double heads = turns ? 2 * turned * (attention.head_norms ? 2 : 1) : 0;
  const double gates = block.delta.exists() ? 0 : 3 * static_cast<double>(attention.gate_width());
  const Traffic delta = delta_traffic(block, number_bytes);
  const auto width = static_cast<double>(number_bytes);
  // Two norms each read and write a row, two residuals each read two rows and write one, and an
  // activation reads and writes. Backward reads gradient and input, and adds to the stream's
  // gradient. Blocks with layer norms also drop branches, and sum for the biases of all products.
  // A gate is computed again together with its gradient.
  const double biases = block.norm == NormKind::kLayer ? 9 * hidden : 0;
  const double in_forward = block.mlp.gated ? 3 * mlp : 2 * mlp;
  const double in_backward = block.mlp.gated ? 6 * mlp : 4 * mlp;
  const double norms = block.norms_branches() ? 4 * hidden : 0;  // two more
  const Traffic experts = experts_traffic(block, number_bytes);
  return {.forward = width * (10 * hidden + norms + heads + gates + in_forward) + experts.forward +
                     delta.forward,
          .backward = width * (8 * hidden + 2 * norms + biases + heads + 2 * gates + in_backward) +
                      experts.backward + delta.backward};
}

std::vector<Fp8Product> fp8_products(const BlockSpec& block) {
  std::vector<Fp8Product> products;
  if (!block.fp8.enabled) return products;
  const auto add = [&](const Fp8Product& product) {
    if (divides_fp8(product.in, product.out)) products.push_back(product);
  };
  add({.in = block.hidden, .out = block.mixer_in_width()});
  add({.in = block.mixer_width(), .out = block.hidden});
  if (!block.has_dense()) return products;
  add({.in = block.hidden, .out = block.mlp.in_width(), .is_of_feed_forward = true});
  add({.in = block.mlp.width, .out = block.hidden, .is_of_feed_forward = true});
  return products;
}

Fp8Work block_fp8_work(const BlockSpec& block, std::int64_t number_bytes) {
  Fp8Work work;
  const bool puts_weights = !block.fp8.wide_weight_gradients;
  // A cast reads its matrix twice, for the largest number first.
  const auto cast = static_cast<double>(2 * number_bytes + 1);
  for (const Fp8Product& product : fp8_products(block)) {
    const auto in = static_cast<double>(product.in);
    const auto out = static_cast<double>(product.out);
    const double flops = 2 * in * out;
    const bool is_last =
        product.is_of_feed_forward && product.out == block.hidden && product.in == block.mlp.width;
    work.flops.forward += flops;
    work.flops.backward += puts_weights ? 2 * flops : flops;
    // The last product is repeated in backward, and only for a norm of its output.
    if (!is_last) work.flops.recompute += flops;
    if (is_last && block.norms_branches()) work.flops.backward += flops;
    work.of_token.forward += cast * in;
    work.of_token.backward += puts_weights ? (cast + 1) * out + cast * in : cast * out;
    work.of_passes.forward += cast * in * out;
    work.of_passes.backward += cast * in * out;
  }
  return work;
}

std::uint64_t block_saved_bytes(const BlockSpec& block, const PassShape& pass) {
  constexpr std::int64_t kFp32Bytes = 4;
  const bool cut = RowPieces(pass.rows(), block.piece_rows).cut();
  // A mean and a reciprocal deviation, or one number, of both norms or of the first.
  const std::int64_t of_norm = block.norm == NormKind::kLayer ? 2 : 1;
  const std::int64_t branches = block.norms_branches() ? 1 : 0;  // with a norm: attention's
  const std::int64_t statistics = of_norm * ((cut ? 1 : 2) + branches);
  const std::int64_t numbers = block.mixer_in_width() + block.mixer_width() +
                               (1 + branches) * block.hidden +
                               (cut ? 0 : block.mlp_in_width() + block.logits());
  const bool has_sums = !block.delta.exists() && block.attention.soft_cap == 0;
  const std::int64_t sums = has_sums ? block.attention.heads : 0;
  return static_cast<std::uint64_t>(
      pass.rows() * (numbers * pass.number_bytes + (statistics + sums) * kFp32Bytes));
}

}  // namespace sluice::engine
