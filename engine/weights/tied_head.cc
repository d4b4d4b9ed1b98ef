#include "engine/weights/tied_head.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;

// Compares bits: a NaN is not equal to itself, and -0 is equal to 0.
bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Status check_tied_head(const ParameterNames& names, WeightSource& weights,
                       std::uint64_t most_elements) {
  if (!names.is_tied) return {};
  const TensorInfo* const head = find_parameter(names, weights.tensors(), names.head);
  const TensorInfo* const embedding =
      find_parameter(names, weights.tensors(), names.token_embedding);
  if (head == nullptr || embedding == nullptr) return {};
  const std::uint64_t row =
      head->shape.empty() ? 1 : std::max<std::uint64_t>(head->shape.back(), 1);
  std::vector<float> of_head;
  std::vector<float> of_embedding;
  const std::uint64_t elements = std::min(head->elements, most_elements);
  for (std::uint64_t first = 0; first < elements; first += kElementsAtOnce) {
    const std::uint64_t count = std::min(kElementsAtOnce, elements - first);
    of_head.resize(count);
    of_embedding.resize(count);
    SLUICE_RETURN_IF_ERROR(weights.read(head->name, first, of_head));
    SLUICE_RETURN_IF_ERROR(weights.read(embedding->name, first, of_embedding));
    if (same_bits(of_head, of_embedding)) continue;
    std::uint64_t at = 0;
    while (same_bits(std::span(of_head).subspan(at, 1), std::span(of_embedding).subspan(at, 1)))
      ++at;
    return Error(ErrorCode::kInvalidArgument,
                 "tensor " + in_quotes(head->name) + " is not " + in_quotes(embedding->name) +
                     " (token " + std::to_string((first + at) / row) +
                     " is the first that differs): the weights have a head of their own, and the "
                     "model is said to have the token embedding as its head. Set "
                     "tie_word_embeddings to false in its config.json (or model.tied_head=false) "
                     "to train both, as transformers 5 does; to train the one, remove the tensor");
  }
  return {};
}

}  // namespace sluice::engine
