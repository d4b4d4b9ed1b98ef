// The costs of operations that several families share, from their shapes alone: parts of
// UnitKind::flops() and UnitKind::peak_bytes(). Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/unit_costs.h"

namespace sluice::engine {

// Causal attention of one micro-batch.
struct AttentionCosts {
  std::int64_t heads = 0;     // of queries
  std::int64_t kv_heads = 0;  // of keys and values
  std::int64_t head_dim = 0;
  std::int64_t window = 0;  // keys visible to a query; 0: all up to it
  bool capped = false;      // scores have a soft cap: no fused kernel computes them

  // Multiply-adds per token, for one product over the scores.
  double score_products(std::int64_t tokens) const;
  // Memory of backward, of a fused kernel or of plain_attention(). It does not count queries, keys,
  // values, output, logarithms of sums, and their gradients.
  std::uint64_t backward_bytes(const PassShape& pass, const PeakOptions& options) const;
};

// The output projection and the loss. The projection has `columns` rows, of which `vocab` are
// tokens.
struct OutputCosts {
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t columns = 0;
  bool capped = false;  // logits have a soft cap

  Flops flops() const;
  // UnitKind::peak_bytes() of a head: a norm with `statistics` numbers a row, and this.
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options,
                           std::int64_t statistics) const;
};

// Traffic of a head's loss: logits are written and read, and then their gradient is.
Traffic logits_traffic(std::int64_t vocab, std::int64_t number_bytes);

// Rows of logits in memory at once. There are more on CUDA, where each chunk also reads and writes
// the projection's whole gradient.
std::int64_t loss_chunk_rows(std::int64_t vocab, bool cpu);

// fp32 copies for one product over the pass's rows, on a CPU without fast 16-bit products.
std::uint64_t product_copies_bytes(const PassShape& pass, const PeakOptions& options,
                                   std::int64_t inner, std::int64_t columns);

// fp32 copies of the rows that are summed for a bias with this many columns.
std::uint64_t bias_sum_bytes(const PassShape& pass, std::int64_t columns, bool cpu);

}  // namespace sluice::engine
