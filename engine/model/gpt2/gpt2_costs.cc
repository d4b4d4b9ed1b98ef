#include "engine/model/gpt2/gpt2_costs.h"

#include <algorithm>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/gpt2/gpt2_shape.h"
#include "engine/model/op_costs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

OutputCosts output_costs(const ModelShape& shape, std::int64_t padded_vocab) {
  const bool padded = gpt2_variant(shape).tied && padded_vocab != 0;
  return {
      .hidden = shape.hidden, .vocab = shape.vocab, .columns = padded ? padded_vocab : shape.vocab};
}

// Memory of attention's backward, in addition to the input and the output's gradient: the residual
// stream's gradient, attention's input and output with statistics, and their gradients. When the
// kernel is done, those of queries, keys and values are packed, and summed for the biases.
std::uint64_t attention_bytes(const ModelShape& shape, const BlockSpec& block,
                              const PassShape& pass, const PeakOptions& options) {
  const std::int64_t kept =
      pass.rows() * (9 * shape.hidden * pass.number_bytes + (2 + shape.heads) * kFp32Bytes);
  return bytes(kept) + std::max(attention_costs(block).backward_bytes(pass, options),
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

std::uint64_t block_peak_bytes(const ModelShape& shape, const PassShape& pass,
                               const PeakOptions& options, std::int64_t piece_rows) {
  const RowPieces pieces(pass.rows(), piece_rows);
  BlockSpec block = gpt2_spec(shape).block;
  block.piece_rows = piece_rows;
  const std::uint64_t attention = attention_bytes(shape, block, pass, options);
  const std::uint64_t dropped = shape.dropout > 0 ? unit_input_bytes(shape, pass) : 0;
  const std::uint64_t saved = block_saved_bytes(block, pass);
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
