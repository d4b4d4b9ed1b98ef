#include "engine/exchange/model_weights.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "engine/exchange/checkpoint_weights.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/weights/quoting.h"
#include "engine/weights/safetensors_reader.h"
#include "engine/weights/stacked_weights.h"

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
    return Error(
        ErrorCode::kInvalidArgument,
        "tensor " + in_quotes(head->name) + " is not " + in_quotes(embedding->name) + " (token " +
            std::to_string((first + at) / row) +
            " is the first that differs): the weights have a separate head, but the model's "
            "configuration ties it to the token embedding. Set tie_word_embeddings to false in its "
            "config.json (or model.tied_head=false) to train both, as transformers 5 does; to "
            "train only the embedding, remove the tensor");
  }
  return {};
}

namespace {

constexpr std::uint64_t kBeginningElements = std::uint64_t{1} << 20;

}  // namespace

Result<ModelWeights> open_model_weights(aio::IoQueue& queue, const std::string& path,
                                        const ModelShape& shape, HeadCheck head) {
  if (std::string absent = absent_model(path); !absent.empty())
    return Error(ErrorCode::kNotFound, std::move(absent));
  SLUICE_RETURN_IF_ERROR(check_described_model(queue, path, shape));
  const ParameterNames& rules = family_of(shape).parameter_names(shape);
  ModelWeights weights;
  SLUICE_ASSIGN_OR_RETURN(weights.reader, CheckpointWeights::open(queue, path));
  if (weights.reader == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(weights.reader, SafetensorsReader::open(queue, path));
  }
  weights.reader = StackedWeights::over(std::move(weights.reader), rules);
  weights.parameters = parameter_specs(shape, DType::kF32);
  auto names = match_parameters(rules, weights.reader->tensors(), weights.parameters);
  if (!names.ok()) return std::move(names).error().with_context(path);
  weights.names = *std::move(names);
  const Status tied = head == HeadCheck::kWhole
                          ? check_tied_head(rules, *weights.reader)
                          : check_tied_head(rules, *weights.reader, kBeginningElements);
  if (!tied.ok()) return Error(tied.error()).with_context(path);
  return weights;
}

}  // namespace sluice::engine
