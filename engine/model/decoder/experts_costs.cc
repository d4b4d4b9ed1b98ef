#include "engine/model/decoder/experts_costs.h"

#include <algorithm>

#include "engine/model/op_costs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;
constexpr std::int64_t kIndexBytes = 8;

// A grouped product of 16-bit numbers writes gradients of weights to a temporary of at most so many
// elements, from which they are added in fp32.
constexpr std::int64_t kMostGradientElements = std::int64_t{1} << 27;

// For each expert and token: fp32 probabilities, their sorted copy and their gradient, with the
// indices of the sort.
constexpr std::int64_t kRoutingBytes = 3 * kFp32Bytes + kIndexBytes;

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

std::int64_t gradient_bytes(std::int64_t elements, const PassShape& pass,
                            const PeakOptions& options, const ExpertsPeak& peak) {
  if (!peak.is_trained || options.cpu || pass.number_bytes >= kFp32Bytes) return 0;
  return std::min(elements, kMostGradientElements) * pass.number_bytes;
}

}  // namespace

Traffic experts_traffic(const BlockSpec& block, std::int64_t number_bytes) {
  const ExpertsSpec& experts = block.experts;
  if (!experts.exist()) return {};
  const auto gathered = static_cast<double>(experts.per_token * block.hidden * number_bytes);
  const auto routing = static_cast<double>(experts.count * kRoutingBytes);
  const auto sums = static_cast<double>(2 * block.hidden * kFp32Bytes);
  // A shared expert's output is read and added; backward weights its gradient, and adds two of the
  // input's.
  const auto shared = experts.shared ? static_cast<double>(3 * block.hidden * number_bytes) : 0.0;
  // Forward reads and writes the gathered rows, and reads what is summed. Backward gathers the
  // inputs again, and their gradients, and sums the latter; weights of rows read both sides.
  return {.forward = 3 * gathered + sums + routing + shared,
          .backward = 7 * gathered + sums + routing + 3 * shared};
}

std::uint64_t experts_backward_bytes(const BlockSpec& block, const PassShape& pass,
                                     const PeakOptions& options, const ExpertsPeak& peak) {
  const ExpertsSpec& experts = block.experts;
  constexpr std::int64_t kIndices = 4;  // for each gathered row
  const std::int64_t hidden = pass.rows() * block.hidden;
  const std::int64_t gathered = experts.per_token * hidden;
  const std::int64_t wide = pass.rows() * experts.per_token * experts.width;
  const std::int64_t routing =
      pass.rows() * (experts.count * kRoutingBytes + experts.per_token * kIndices * kIndexBytes) +
      (experts.bias ? pass.rows() * (experts.per_token + 2) * experts.count * pass.number_bytes
                    : 0);
  const std::int64_t matrix = experts.count * block.hidden * experts.width;
  const auto copies = [&](std::int64_t columns) {
    const PassShape rows = {.tokens = pass.rows() * experts.per_token,
                            .number_bytes = pass.number_bytes};
    return product_copies_bytes(rows, options, block.hidden, columns);
  };
  // The gathered gradients of the output, and the activation with its gradient.
  const std::uint64_t down = bytes((gathered + peak.activated * wide) * pass.number_bytes +
                                   gradient_bytes(matrix, pass, options, peak)) +
                             copies(experts.width);
  // The norm's output and its gradient, the gathered rows or their gradient, and their sum, which
  // is fp32 unless our own kernel computes it.
  constexpr std::int64_t kPack = 8;
  const bool is_fused = !options.cpu && pass.number_bytes < kFp32Bytes && block.hidden % kPack == 0;
  const std::uint64_t in = bytes((2 * hidden + wide + gathered) * pass.number_bytes +
                                 (is_fused ? 0 : hidden * kFp32Bytes) +
                                 gradient_bytes(2 * matrix, pass, options, peak)) +
                           copies(2 * experts.width);
  return std::max(down, in) + bytes(routing);
}

// For each gathered row a product with A before it is added, and three of the rank. Also both B in
// the order of experts, and the gradient of one, which is copied if its rows are in turn.
std::uint64_t expert_adapter_bytes(const BlockSpec& block, const PassShape& pass,
                                   const LoraRecipe& lora) {
  const ExpertsSpec& experts = block.experts;
  const std::int64_t in = 2 * experts.width;
  const std::int64_t widest = std::max(experts.width, block.hidden);
  const std::int64_t gradient = std::max((experts.in_turn ? 2 : 1) * in, block.hidden);
  const std::int64_t rows = pass.rows() * experts.per_token;
  const std::int64_t columns = experts.count * lora.rank;
  return bytes(rows * (widest + 3 * lora.rank) * pass.number_bytes +
               columns * ((in + block.hidden) * pass.number_bytes + gradient * kFp32Bytes));
}

}  // namespace sluice::engine
