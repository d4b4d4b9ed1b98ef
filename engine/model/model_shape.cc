#include "engine/model/model_shape.h"

namespace sluice::engine {
namespace {

// Keeps all products of a model's numbers well within 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 65536;

Status check_range(std::string_view name, std::int64_t value, std::int64_t largest) {
  if (value >= 1 && value <= largest) return {};
  return cannot_build(std::string(name) + " is " + std::to_string(value) + "; it must be 1 to " +
                      std::to_string(largest));
}

}  // namespace

double balance_coefficient(const ModelShape& shape) {
  const auto found = shape.numbers.find(std::string(kBalanceCoefficient));
  return found == shape.numbers.end() ? 0 : found->second;
}

Error cannot_build(const std::string& sentence) {
  return {ErrorCode::kInvalidArgument, "the model cannot be built: " + sentence};
}

Status check_sizes(const ModelShape& shape) {
  SLUICE_RETURN_IF_ERROR(check_range("layers", shape.layers, kMostLayers));
  SLUICE_RETURN_IF_ERROR(check_range("hidden", shape.hidden, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("heads", shape.heads, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("context", shape.context_tokens, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("vocab", shape.vocab, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("ffn_hidden", shape.ffn(), 4 * kLargest));
  if (!(shape.dropout >= 0 && shape.dropout < 1)) {
    return cannot_build("dropout is " + std::to_string(shape.dropout) +
                        "; it must be at least 0 and below 1");
  }
  return {};
}

}  // namespace sluice::engine
