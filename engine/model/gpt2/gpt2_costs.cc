#include "engine/model/gpt2/gpt2_costs.h"

#include <algorithm>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/gpt2/gpt2_shape.h"
#include "engine/model/op_costs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

// Multiply-adds per token in a block's matrices.
double weight_products(const ModelShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden);
  return hidden * (4 * hidden + 2 * static_cast<double>(shape.ffn()));
}

AttentionCosts attention_costs(const ModelShape& shape) {
  return {.heads = shape.heads, .kv_heads = shape.heads, .head_dim = gpt2_head_dim(shape)};
}

OutputCosts output_costs(const ModelShape& shape, std::int64_t padded_vocab) {
  const bool padded = gpt2_variant(shape).tied && padded_vocab != 0;
  return {
      .hidden = shape.hidden, .vocab = shape.vocab, .columns = padded ? padded_vocab : shape.vocab};
}

// Memory of attention's backward, in addition to the input and the output's gradient: the residual
// stream's gradient, attention's input and output with statistics, and their gradients. When the
// kernel is done, those of queries, keys and values are packed, and summed for the biases.
std::uint64_t attention_bytes(const ModelShape& shape, const PassShape& pass,
                              const PeakOptions& options) {
  const std::int64_t kept =
      pass.rows() * (9 * shape.hidden * pass.number_bytes + (2 + shape.heads) * kFp32Bytes);
  return bytes(kept) + std::max(attention_costs(shape).backward_bytes(pass, options),
                                3 * unit_input_bytes(shape, pass) +
                                    bias_sum_bytes(pass, 3 * shape.hidden, options.cpu));
}

// A piece's middle of the feed-forward, its gradient, and the norm's output.
std::uint64_t piece_bytes(const ModelShape& shape, const PassShape& piece,
                          const PeakOptions& options) {
  return bytes(piece.rows() * (2 * shape.ffn() + shape.hidden) * piece.number_bytes) +
         std::max(bias_sum_bytes(piece, shape.ffn(), options.cpu),
                  product_copies_bytes(piece, options, shape.hidden, shape.ffn()));
}

}  // namespace

Flops block_flops(const ModelShape& shape, std::int64_t tokens) {
  const double weights = 2 * weight_products(shape);
  const double scores = 2 * attention_costs(shape).score_products(tokens);
  const double last = 2 * static_cast<double>(shape.ffn() * shape.hidden);
  // Backward computes the feed-forward's first product in pieces, and recompute() does not.
  const double in_pieces = RowPieces(tokens).cut() ? last : 0;
  // Attention is two products in forward. Backward computes the scores again, and four more
  // products.
  return {.forward = weights + 2 * scores,
          .backward = 2 * weights + 5 * scores + in_pieces,
          .recompute = weights - last + 2 * scores - in_pieces};
}

Traffic block_traffic(const ModelShape& shape, std::int64_t number_bytes) {
  const auto hidden = static_cast<double>(shape.hidden);
  const auto ffn = static_cast<double>(shape.ffn());
  const auto width = static_cast<double>(number_bytes);
  // Two norms each read and write a row, two residuals each read two rows and write one, and the
  // activation reads and writes. Backward reads gradient and input, adds to the stream's gradient,
  // and sums for biases.
  return {.forward = width * (10 * hidden + 2 * ffn), .backward = width * (17 * hidden + 4 * ffn)};
}

Flops head_flops(const ModelShape& shape, std::int64_t padded_vocab) {
  return output_costs(shape, padded_vocab).flops();
}

std::uint64_t unit_input_bytes(const ModelShape& shape, const PassShape& pass) {
  return bytes(pass.rows() * shape.hidden * pass.number_bytes);
}

std::uint64_t block_saved_bytes(const ModelShape& shape, const PassShape& pass,
                                std::int64_t piece_rows) {
  const bool cut = RowPieces(pass.rows(), piece_rows).cut();
  // Mean and reciprocal deviation of two norms, or of the first.
  const std::int64_t statistics = cut ? 2 : 4;
  return bytes(pass.rows() * ((5 * shape.hidden + (cut ? 0 : shape.ffn())) * pass.number_bytes +
                              (statistics + shape.heads) * kFp32Bytes));
}

std::uint64_t block_peak_bytes(const ModelShape& shape, const PassShape& pass,
                               const PeakOptions& options, std::int64_t piece_rows) {
  const RowPieces pieces(pass.rows(), piece_rows);
  const std::uint64_t attention = attention_bytes(shape, pass, options);
  const std::uint64_t dropped = shape.dropout > 0 ? unit_input_bytes(shape, pass) : 0;
  const std::uint64_t saved = block_saved_bytes(shape, pass, piece_rows);
  if (pieces.cut())
    return 2 * unit_input_bytes(shape, pass) +
           std::max(saved + dropped +
                        piece_bytes(shape,
                                    {.tokens = pieces.largest(), .number_bytes = pass.number_bytes},
                                    options),
                    attention);
  // During the feed-forward's backward all saved tensors are still in memory, with its gradient and
  // what dropout made of the output's gradient.
  const std::uint64_t feed_forward =
      bytes(pass.rows() * shape.ffn() * pass.number_bytes) + dropped +
      std::max(bias_sum_bytes(pass, shape.ffn(), options.cpu),
               product_copies_bytes(pass, options, shape.hidden, shape.ffn()));
  return 2 * unit_input_bytes(shape, pass) + std::max(saved + feed_forward, attention);
}

std::uint64_t head_peak_bytes(const ModelShape& shape, const PassShape& pass,
                              std::int64_t padded_vocab, const PeakOptions& options) {
  constexpr std::int64_t kStatistics = 2;
  return output_costs(shape, padded_vocab).peak_bytes(pass, options, kStatistics);
}

}  // namespace sluice::engine
