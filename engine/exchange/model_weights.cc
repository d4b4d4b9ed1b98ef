#include "engine/exchange/model_weights.h"

#include <utility>

#include "engine/exchange/checkpoint_weights.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/weights/safetensors_reader.h"
#include "engine/weights/tied_head.h"

namespace sluice::engine {
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
