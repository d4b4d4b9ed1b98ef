#include "engine/model/gpt2/gpt2_costs.h"

#include <algorithm>
#include <bit>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/plain_attention_chunk.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

// Logits at once: 64 MiB of 16-bit numbers, 256 MiB on CUDA.
constexpr std::int64_t kCpuLogits = std::int64_t{1} << 25;
constexpr std::int64_t kCudaLogits = std::int64_t{1} << 27;
constexpr std::int64_t kRowMultiple = 64;

// FlashAttention pads its sums to these, and has one for each share of the multiprocessors; the
// largest GPUs of today have fewer.
constexpr std::int64_t kFlashRows = 128;
constexpr std::int64_t kFlashColumns = 32;
constexpr std::int64_t kMostMultiprocessors = 160;

constexpr std::int64_t kRowsPerSum = 64;  // column_partial_rows()

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

std::int64_t rows_of(const PassShape& pass) { return pass.micro_batch * pass.tokens; }

// Products of two numbers per token, in a block's matrices and in one pass of its attention.
double weight_products(const ModelShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden);
  return hidden * (4 * hidden + 2 * static_cast<double>(shape.ffn()));
}

double score_products(const ModelShape& shape, std::int64_t tokens) {
  return static_cast<double>(shape.hidden) * (static_cast<double>(tokens) + 1) / 2;
}

// fp32 copies of queries, keys, values, the output's gradient and theirs, and the probabilities of
// one chunk with what is made of them.
std::int64_t plain_attention_bytes(const ModelShape& shape, const PassShape& pass) {
  const std::int64_t pairs = pass.micro_batch * shape.heads;
  const std::int64_t chunk = std::min(plain_attention_chunk(pass.tokens), pairs);
  return kFp32Bytes * (8 * rows_of(pass) * shape.hidden + 5 * chunk * pass.tokens * pass.tokens) +
         pass.tokens * pass.tokens;
}

// FlashAttention's fp32 sums of the queries' gradients; several of them where it has to add them in
// one order.
std::int64_t flash_sums_bytes(const ModelShape& shape, const PassShape& pass, bool deterministic) {
  const std::int64_t pairs = pass.micro_batch * shape.heads;
  const std::int64_t sums = deterministic ? (kMostMultiprocessors + pairs - 1) / pairs : 1;
  const std::int64_t length = (pass.tokens + kFlashRows - 1) / kFlashRows * kFlashRows;
  const std::int64_t width =
      (gpt2_head_dim(shape) + kFlashColumns - 1) / kFlashColumns * kFlashColumns;
  return kFp32Bytes * sums * pairs * length * (width + 1);
}

// In attention's backward, beside input and gradient of the output: the residual stream's gradient,
// attention's input and output with statistics, their gradients.
std::uint64_t attention_bytes(const ModelShape& shape, const PassShape& pass,
                              const PeakOptions& options) {
  const std::int64_t kept =
      rows_of(pass) * (9 * shape.hidden * pass.number_bytes + (2 + shape.heads) * kFp32Bytes);
  if (options.plain_attention) return bytes(kept + plain_attention_bytes(shape, pass));
  if (options.cpu) return bytes(kept);
  return bytes(kept + flash_sums_bytes(shape, pass, options.deterministic));
}

}  // namespace

Flops block_flops(const ModelShape& shape, std::int64_t tokens) {
  const double weights = 2 * weight_products(shape);
  const double scores = 2 * score_products(shape, tokens);
  const double last = 2 * static_cast<double>(shape.ffn() * shape.hidden);
  // Attention is two products forward; backward makes the scores again and four products more.
  return {.forward = weights + 2 * scores,
          .backward = 2 * weights + 5 * scores,
          .recompute = weights - last + 2 * scores};
}

Flops head_flops(const ModelShape& shape, std::int64_t padded_vocab) {
  const std::int64_t columns = padded_vocab == 0 ? shape.vocab : padded_vocab;
  const double logits = 2 * static_cast<double>(columns) * static_cast<double>(shape.hidden);
  return {.forward = logits, .backward = 2 * logits, .recompute = 0};
}

Flops model_flops(const ModelShape& shape, std::int64_t tokens, std::int64_t padded_vocab) {
  const Flops block = block_flops(shape, tokens);
  const Flops head = head_flops(shape, padded_vocab);
  const auto layers = static_cast<double>(shape.layers);
  return {.forward = layers * block.forward + head.forward,
          .backward = layers * block.backward + head.backward,
          .recompute = layers * block.recompute};
}

std::uint64_t unit_input_bytes(const ModelShape& shape, const PassShape& pass) {
  return bytes(rows_of(pass) * shape.hidden * pass.number_bytes);
}

std::uint64_t block_saved_bytes(const ModelShape& shape, const PassShape& pass) {
  constexpr std::int64_t kStatistics = 4;  // mean and reciprocal deviation of two norms
  return bytes(rows_of(pass) * ((5 * shape.hidden + shape.ffn()) * pass.number_bytes +
                                (kStatistics + shape.heads) * kFp32Bytes));
}

std::uint64_t block_peak_bytes(const ModelShape& shape, const PassShape& pass,
                               const PeakOptions& options) {
  const std::int64_t rows = rows_of(pass);
  // In the feed-forward's backward all that was saved is there, its gradient and what dropout made
  // of the output's.
  std::int64_t feed_forward =
      rows * (shape.ffn() + (shape.dropout > 0 ? shape.hidden : 0)) * pass.number_bytes;
  if (pass.number_bytes < kFp32Bytes) {
    // On the CPU an fp32 copy of what is summed for a bias; on CUDA the sums of blocks of rows.
    const std::int64_t summed = options.cpu ? rows : (rows + kRowsPerSum - 1) / kRowsPerSum;
    feed_forward += summed * shape.ffn() * kFp32Bytes;
  }
  const std::uint64_t saved = block_saved_bytes(shape, pass);
  return 2 * unit_input_bytes(shape, pass) +
         std::max(saved + bytes(feed_forward), attention_bytes(shape, pass, options));
}

std::uint64_t head_peak_bytes(const ModelShape& shape, const PassShape& pass,
                              std::int64_t padded_vocab, const PeakOptions& options) {
  const std::int64_t columns = padded_vocab == 0 ? shape.vocab : padded_vocab;
  const std::int64_t logits =
      std::min(loss_chunk_rows(shape.vocab, options.cpu), rows_of(pass)) * columns;
  std::int64_t chunk = logits * pass.number_bytes;
  if (options.cpu) chunk += logits * kFp32Bytes * (pass.number_bytes < kFp32Bytes ? 2 : 1);
  // Input, norm's output and its gradient; the input's gradient when the chunks are done.
  constexpr std::int64_t kStatistics = 2;
  return 3 * unit_input_bytes(shape, pass) + std::max(bytes(chunk), unit_input_bytes(shape, pass)) +
         bytes(rows_of(pass) * kStatistics * kFp32Bytes);
}

std::int64_t loss_chunk_rows(std::int64_t vocab, bool cpu) {
  if (cpu) return std::max(kCpuLogits / vocab / kRowMultiple * kRowMultiple, kRowMultiple);
  // A power of two, which divides the rows of most micro-batches.
  const auto rows = std::bit_floor(static_cast<std::uint64_t>(kCudaLogits / vocab));
  return std::max(static_cast<std::int64_t>(rows), kRowMultiple);
}

}  // namespace sluice::engine
