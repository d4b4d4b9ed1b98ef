#include "engine/model/llama/llama_embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>

#include "engine/model/llama/llama_layout.h"
#include "engine/model/ops/embedding_rows.h"

namespace sluice::engine {

LlamaEmbedding::LlamaEmbedding(const LlamaShape& shape, std::int64_t padded_vocab)
    : ModelUnit(embedding_layout(llama_spec(shape), padded_vocab)) {}

at::Tensor LlamaEmbedding::forward(const PassContext& /*context*/, const UnitViews& parameters,
                                   const at::Tensor& input, Saved* /*saved*/) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return at::embedding(parameters[0], input);
}

void LlamaEmbedding::recompute(const PassContext& /*context*/, const UnitViews& /*parameters*/,
                               const at::Tensor& /*input*/, Saved& /*saved*/) const {}

at::Tensor LlamaEmbedding::backward(const PassContext& /*context*/, const UnitViews& /*parameters*/,
                                    const at::Tensor& input, Saved& /*saved*/,
                                    const at::Tensor& grad_output,
                                    const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!gradients[0].defined()) return {};  // not trained
  accumulate_rows(gradients[0], input.flatten(), grad_output.flatten(0, 1));
  return {};
}

at::Tensor LlamaEmbedding::extend(const UnitViews& parameters, const at::Tensor& input,
                                  KvCache& /*cache*/) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return at::embedding(parameters[0], input);
}

}  // namespace sluice::engine
