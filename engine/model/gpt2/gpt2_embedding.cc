#include "engine/model/gpt2/gpt2_embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/sum.h>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/embedding_rows.h"

namespace sluice::engine {

Gpt2Embedding::Gpt2Embedding(const ModelShape& shape, std::int64_t padded_vocab)
    : ModelUnit(embedding_layout(gpt2_spec(shape), padded_vocab)), dropout_(shape.dropout) {}

at::Tensor Gpt2Embedding::forward(const PassContext& context, const UnitViews& parameters,
                                  const at::Tensor& input, Saved* /*saved*/) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& positions = parameters[embedding_parameter::kPosition];
  const Documents* const documents = context.documents;
  const std::int64_t longest = documents == nullptr ? input.size(1) : documents->longest;
  TORCH_CHECK(longest <= positions.size(0), "a text of ", longest,
              " tokens is longer than the model's context of ", positions.size(0));
  at::Tensor sum = at::embedding(parameters[embedding_parameter::kToken], input);
  if (documents == nullptr)
    sum.add_(positions.narrow(0, 0, input.size(1)));
  else
    sum.add_(at::embedding(positions, documents->positions));
  drop_in_place(sum, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  return sum;
}

void Gpt2Embedding::recompute(const PassContext& /*context*/, const UnitViews& /*parameters*/,
                              const at::Tensor& /*input*/, Saved& /*saved*/) const {}

at::Tensor Gpt2Embedding::backward(const PassContext& context, const UnitViews& /*parameters*/,
                                   const at::Tensor& input, Saved& /*saved*/,
                                   const at::Tensor& grad_output,
                                   const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor grad =
      with_dropout(grad_output, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  const at::Tensor& positions = gradients[embedding_parameter::kPosition];
  if (context.documents == nullptr)
    positions.narrow(0, 0, input.size(1)).add_(at::sum(grad, {0}, false, positions.scalar_type()));
  else
    accumulate_rows(positions, context.documents->positions.flatten(), grad.flatten(0, 1));
  accumulate_rows(gradients[embedding_parameter::kToken], input.flatten(), grad.flatten(0, 1));
  return {};
}

at::Tensor Gpt2Embedding::extend(const UnitViews& parameters, const at::Tensor& input,
                                 KvCache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  TORCH_CHECK(cache.length() + input.size(1) <= cache.capacity(), "a sequence of ",
              cache.length() + input.size(1), " tokens is longer than the model's context of ",
              cache.capacity());
  at::Tensor sum = at::embedding(parameters[embedding_parameter::kToken], input);
  return sum.add_(
      parameters[embedding_parameter::kPosition].narrow(0, cache.length(), input.size(1)));
}

}  // namespace sluice::engine
