// What a decoder block's passes compute and keep, derived from its spec. Without LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/op_costs.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// Numbers of one block's adapters that compute a token, on the side of the products' inputs and on
// that of their outputs. Also the widest input and output with an adapter, without experts'.
struct AdapterNumbers {
  double in = 0;
  double out = 0;
  std::int64_t widest_in = 0;
  std::int64_t widest_out = 0;
};
// All 0 without adapters.
AdapterNumbers adapter_numbers(const BlockSpec& block, const LoraRecipe& lora);

// UnitKind::idle_elements().
std::uint64_t block_idle_elements(const BlockSpec& block);

AttentionCosts attention_costs(const BlockSpec& block);

// The fp32 numbers of a delta rule's backward, for each token and value head that are computed at a
// time (delta_part_heads()), in chunks of so many tokens.
std::int64_t delta_backward_numbers(const DeltaHeads& heads, std::int64_t chunk);

// UnitKind::flops().
Flops block_flops(const BlockSpec& block, const AdapterNumbers& adapters, std::int64_t tokens);

// UnitKind::traffic(): norms, residuals, rotary positions, norms of heads, and the activation or
// gate.
Traffic block_traffic(const BlockSpec& block, std::int64_t number_bytes);

// The products that are computed in fp8 (has_fp8_product()): all of a token's products with dense
// matrices whose widths allow it (divides_fp8()). `in` and `out`: their widths.
struct Fp8Product {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool is_of_feed_forward = false;
};
std::vector<Fp8Product> fp8_products(const BlockSpec& block);

// UnitKind::fp8_work().
Fp8Work block_fp8_work(const BlockSpec& block, std::int64_t number_bytes);

// UnitKind::saved_bytes(): queries, keys and values, with the gate of the output; attention's
// output; the residual stream between the branches. A delta rule has its products and its output
// instead of attention's. Unless it is computed in pieces, also the feed-forward before its
// activation, and the router's logits. Also fp32 statistics of the norms and a sum for each head.
std::uint64_t block_saved_bytes(const BlockSpec& block, const PassShape& pass);

}  // namespace sluice::engine
