#include "engine/model/gpt_costs.h"

#include <algorithm>

#include "engine/model/plain_attention_chunk.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

// 64 MiB of 16-bit numbers: enough rows to keep a GPU busy.
constexpr std::int64_t kLogitElements = std::int64_t{1} << 25;
constexpr std::int64_t kRowMultiple = 64;

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

std::int64_t rows_of(const PassShape& pass) { return pass.micro_batch * pass.tokens; }

// Products of two numbers per token, in a block's matrices and in one pass of its attention.
double weight_products(const GptShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden);
  return hidden * (4 * hidden + 2 * static_cast<double>(shape.ffn()));
}

double score_products(const GptShape& shape, std::int64_t tokens) {
  return static_cast<double>(shape.hidden) * (static_cast<double>(tokens) + 1) / 2;
}

// fp32 copies of queries, keys, values, the output's gradient and theirs, and the probabilities of
// one chunk with what is made of them.
std::int64_t plain_attention_bytes(const GptShape& shape, const PassShape& pass) {
  const std::int64_t pairs = pass.micro_batch * shape.heads;
  const std::int64_t chunk = std::min(plain_attention_chunk(pass.tokens), pairs);
  return kFp32Bytes * (8 * rows_of(pass) * shape.hidden + 5 * chunk * pass.tokens * pass.tokens) +
         pass.tokens * pass.tokens;
}

}  // namespace

Flops block_flops(const GptShape& shape, std::int64_t tokens) {
  const double weights = 2 * weight_products(shape);
  const double scores = 2 * score_products(shape, tokens);
  const double last = 2 * static_cast<double>(shape.ffn() * shape.hidden);
  // Attention is two products forward; backward makes the scores again and four products more.
  return {.forward = weights + 2 * scores,
          .backward = 2 * weights + 5 * scores,
          .recompute = weights - last + 2 * scores};
}

Flops head_flops(const GptShape& shape, std::int64_t padded_vocab) {
  const std::int64_t columns = padded_vocab == 0 ? shape.vocab : padded_vocab;
  const double logits = 2 * static_cast<double>(columns) * static_cast<double>(shape.hidden);
  return {.forward = logits, .backward = 2 * logits, .recompute = 0};
}

Flops model_flops(const GptShape& shape, std::int64_t tokens, std::int64_t padded_vocab) {
  const Flops block = block_flops(shape, tokens);
  const Flops head = head_flops(shape, padded_vocab);
  const auto layers = static_cast<double>(shape.layers);
  return {.forward = layers * block.forward + head.forward,
          .backward = layers * block.backward + head.backward,
          .recompute = layers * block.recompute};
}

std::uint64_t boundary_bytes(const GptShape& shape, const PassShape& pass) {
  return bytes(rows_of(pass) * shape.hidden * pass.number_bytes);
}

std::uint64_t block_saved_bytes(const GptShape& shape, const PassShape& pass) {
  constexpr std::int64_t kStatistics = 4;  // mean and reciprocal deviation of two norms
  return bytes(rows_of(pass) * ((5 * shape.hidden + shape.ffn()) * pass.number_bytes +
                                (kStatistics + shape.heads) * kFp32Bytes));
}

// The largest moment is the feed-forward's backward: beside input, output's gradient and saved
// activations stand a norm's output, the gradient behind dropout, the GELU and its gradient.
std::uint64_t block_peak_bytes(const GptShape& shape, const PassShape& pass,
                               const PeakOptions& options) {
  const std::int64_t rows = rows_of(pass);
  std::int64_t moment = rows * (2 * shape.hidden + 2 * shape.ffn()) * pass.number_bytes;
  if (options.cpu && pass.number_bytes < kFp32Bytes) {
    moment += rows * (shape.hidden + shape.ffn()) * kFp32Bytes;
  }
  if (options.plain_attention) {
    // By then half of what was saved is gone.
    moment = std::max(
        moment, plain_attention_bytes(shape, pass) + rows * 6 * shape.hidden * pass.number_bytes);
  }
  return 2 * boundary_bytes(shape, pass) + block_saved_bytes(shape, pass) + bytes(moment);
}

std::uint64_t head_peak_bytes(const GptShape& shape, const PassShape& pass,
                              std::int64_t padded_vocab, const PeakOptions& options) {
  const std::int64_t columns = padded_vocab == 0 ? shape.vocab : padded_vocab;
  const std::int64_t logits = std::min(loss_chunk_rows(shape.vocab), rows_of(pass)) * columns;
  std::int64_t chunk = logits * pass.number_bytes;
  if (options.cpu) chunk += logits * kFp32Bytes * (pass.number_bytes < kFp32Bytes ? 2 : 1);
  // Input, norm's output and its gradient; the input's gradient when the chunks are done.
  constexpr std::int64_t kStatistics = 2;
  return 3 * boundary_bytes(shape, pass) + std::max(bytes(chunk), boundary_bytes(shape, pass)) +
         bytes(rows_of(pass) * kStatistics * kFp32Bytes);
}

std::int64_t loss_chunk_rows(std::int64_t vocab) {
  return std::max(kLogitElements / vocab / kRowMultiple * kRowMultiple, kRowMultiple);
}

}  // namespace sluice::engine
