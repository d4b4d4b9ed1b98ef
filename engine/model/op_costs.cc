#include "engine/model/op_costs.h"

#include <algorithm>
#include <bit>

#include "engine/model/fp32_pieces.h"
#include "engine/model/plain_attention_chunk.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

// Logits in memory at once: 64 MiB of 16-bit numbers, 256 MiB on CUDA.
constexpr std::int64_t kCpuLogits = std::int64_t{1} << 25;
constexpr std::int64_t kCudaLogits = std::int64_t{1} << 27;
constexpr std::int64_t kRowMultiple = 64;

// FlashAttention pads its sums to multiples of these. It has one sum for each share of the
// multiprocessors; the largest GPUs of today have fewer than kMostMultiprocessors.
constexpr std::int64_t kFlashRows = 128;
constexpr std::int64_t kFlashColumns = 32;
constexpr std::int64_t kMostMultiprocessors = 160;

constexpr std::int64_t kRowsPerSum = 64;  // column_partial_rows()

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

// fp32 copies of queries, keys, values, the output's gradient and their gradients, and for one
// chunk the probabilities and the tensors derived from them, one more with a soft cap.
std::int64_t plain_bytes(const AttentionCosts& attention, const PassShape& pass) {
  const std::int64_t pairs = pass.micro_batch * attention.heads;
  const std::int64_t chunk = std::min(plain_attention_chunk(pass.tokens), pairs);
  const std::int64_t width = attention.heads * attention.head_dim;
  const std::int64_t of_chunk = attention.capped ? 6 : 5;
  return kFp32Bytes * (8 * pass.rows() * width + of_chunk * chunk * pass.tokens * pass.tokens) +
         pass.tokens * pass.tokens;
}

// FlashAttention's fp32 sums of the queries' gradients. It needs several to add them in a fixed
// order.
std::int64_t flash_sums_bytes(const AttentionCosts& attention, const PassShape& pass,
                              bool deterministic) {
  const std::int64_t pairs = pass.micro_batch * attention.heads;
  const std::int64_t sums = deterministic ? (kMostMultiprocessors + pairs - 1) / pairs : 1;
  const std::int64_t length = (pass.tokens + kFlashRows - 1) / kFlashRows * kFlashRows;
  const std::int64_t width =
      (attention.head_dim + kFlashColumns - 1) / kFlashColumns * kFlashColumns;
  return kFp32Bytes * sums * pairs * length * (width + 1);
}

// Keys and values, and their gradients, repeated for each query head if there are fewer.
std::int64_t repeated_bytes(const AttentionCosts& attention, const PassShape& pass, bool cpu) {
  if (attention.kv_heads == attention.heads) return 0;
  const std::int64_t copies = cpu ? 4 : 2;  // FlashAttention repeats only the gradients
  return copies * pass.rows() * attention.heads * attention.head_dim * pass.number_bytes;
}

// Whether a fused kernel computes it without dropout (cuda_attention.h). Heads of 200 to 224 have
// one on some GPUs only. Ignores that GPUs before Ampere have none.
bool is_fused(const AttentionCosts& attention, const PassShape& pass, const PeakOptions& options) {
  constexpr std::int64_t kHeadMultiple = 8;
  const std::int64_t head = attention.head_dim;
  if (options.plain_attention || attention.capped) return false;
  return options.cpu || (pass.number_bytes < kFp32Bytes && head % kHeadMultiple == 0 &&
                         (head <= 192 || (head > 224 && head <= 256)));
}

bool multiplies_in_fp32(const PassShape& pass, const PeakOptions& options) {
  return options.cpu && !options.fast_products && pass.number_bytes < kFp32Bytes;
}

// A mask, unless the causal one suffices.
std::int64_t mask_bytes(const AttentionCosts& attention, const PassShape& pass, bool in_fp32) {
  if (attention.window == 0) return 0;
  const std::int64_t number_bytes = in_fp32 ? kFp32Bytes : pass.number_bytes;
  return pass.tokens * pass.tokens * (number_bytes + 2 * 8 + 1);  // and distances
}

// The fp32 copies of one piece.
std::int64_t fp32_attention_bytes(const AttentionCosts& attention, const PassShape& pass) {
  const std::int64_t groups = attention.heads / attention.kv_heads;
  return kFp32Bytes * Fp32AttentionPiece(pass.micro_batch, attention.kv_heads,
                                         groups * pass.tokens * attention.head_dim)
                          .numbers;
}

}  // namespace

double AttentionCosts::score_products(std::int64_t tokens) const {
  const auto length = static_cast<double>(tokens);
  // Plain attention also multiplies what masks hide.
  if (capped) return static_cast<double>(heads * head_dim) * length;
  double keys = (length + 1) / 2;  // per query, on average
  if (window != 0 && window < tokens) {
    const auto most = static_cast<double>(window);
    keys = most - most * (most - 1) / (2 * length);
  }
  return static_cast<double>(heads * head_dim) * keys;
}

std::uint64_t AttentionCosts::backward_bytes(const PassShape& pass,
                                             const PeakOptions& options) const {
  const std::int64_t repeated = repeated_bytes(*this, pass, options.cpu);
  if (!is_fused(*this, pass, options)) return bytes(plain_bytes(*this, pass) + repeated);
  const bool in_fp32 = multiplies_in_fp32(pass, options);
  // Plans do not query the processor, so both ways must fit.
  if (options.cpu)
    return bytes(std::max(in_fp32 ? fp32_attention_bytes(*this, pass) : 0, repeated) +
                 mask_bytes(*this, pass, in_fp32));
  return bytes(repeated + flash_sums_bytes(*this, pass, options.deterministic));
}

Flops OutputCosts::flops() const {
  const double logits = 2 * static_cast<double>(columns) * static_cast<double>(hidden);
  return {.forward = logits, .backward = 2 * logits, .recompute = 0};
}

std::uint64_t OutputCosts::peak_bytes(const PassShape& pass, const PeakOptions& options,
                                      std::int64_t statistics) const {
  const std::int64_t logits = std::min(loss_chunk_rows(vocab, options.cpu), pass.rows()) * columns;
  std::int64_t chunk = (capped ? 2 : 1) * logits * pass.number_bytes;
  if (options.cpu) {
    const std::int64_t wide = logits * kFp32Bytes * (pass.number_bytes < kFp32Bytes ? 2 : 1);
    const auto copies =
        static_cast<std::int64_t>(product_copies_bytes(pass, options, hidden, columns));
    chunk += std::max(wide, copies);
  }
  // The input, the norm's output and its gradient. The input's gradient is made when the chunks are
  // done.
  const std::uint64_t input = bytes(pass.rows() * hidden * pass.number_bytes);
  return 3 * input + std::max(bytes(chunk), input) + bytes(pass.rows() * statistics * kFp32Bytes);
}

Traffic logits_traffic(std::int64_t vocab, std::int64_t number_bytes) {
  const double bytes = 2 * static_cast<double>(vocab * number_bytes);
  return {.forward = bytes, .backward = bytes};
}

std::int64_t loss_chunk_rows(std::int64_t vocab, bool cpu) {
  if (cpu) return std::max(kCpuLogits / vocab / kRowMultiple * kRowMultiple, kRowMultiple);
  // A power of two, because it divides the rows of most micro-batches.
  const auto rows = std::bit_floor(static_cast<std::uint64_t>(kCudaLogits / vocab));
  return std::max(static_cast<std::int64_t>(rows), kRowMultiple);
}

std::uint64_t product_copies_bytes(const PassShape& pass, const PeakOptions& options,
                                   std::int64_t inner, std::int64_t columns) {
  if (!multiplies_in_fp32(pass, options)) return 0;
  return bytes(kFp32Bytes * Fp32ProductPiece(pass.rows(), inner, columns).numbers);
}

std::uint64_t bias_sum_bytes(const PassShape& pass, std::int64_t columns, bool cpu) {
  if (pass.number_bytes >= kFp32Bytes) return 0;
  // On the CPU an fp32 copy of the rows; on CUDA the sums of blocks of them.
  const std::int64_t rows = cpu ? pass.rows() : (pass.rows() + kRowsPerSum - 1) / kRowsPerSum;
  return bytes(rows * columns * kFp32Bytes);
}

}  // namespace sluice::engine
