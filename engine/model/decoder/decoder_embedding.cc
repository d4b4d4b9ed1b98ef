#include "engine/model/decoder/decoder_embedding.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/embedding_rows.h"

namespace sluice::engine {
namespace {

void add_positions(at::Tensor& sum, const at::Tensor& positions, const Documents* documents) {
  const std::int64_t longest = documents == nullptr ? sum.size(1) : documents->longest;
  TORCH_CHECK(longest <= positions.size(0), "a text of ", longest,
              " tokens is longer than the model's context of ", positions.size(0));
  if (documents == nullptr)
    sum.add_(positions.narrow(0, 0, sum.size(1)));
  else
    sum.add_(at::embedding(positions, documents->positions));
}

void accumulate_positions(const at::Tensor& gradient, const at::Tensor& rows,
                          const Documents* documents) {
  if (documents == nullptr)
    gradient.narrow(0, 0, rows.size(1)).add_(at::sum(rows, {0}, false, gradient.scalar_type()));
  else
    accumulate_rows(gradient, documents->positions.flatten(), rows.flatten(0, 1));
}

// A factor as transformers keeps it: in fp32, and then in the dtype of the weights.
double rounded(double factor, at::ScalarType dtype) {
  return at::scalar_tensor(static_cast<float>(factor), at::dtype(dtype)).item<double>();
}

}  // namespace

DecoderEmbedding::DecoderEmbedding(const DecoderSpec& spec, std::int64_t padded_vocab)
    : ModelUnit(embedding_layout(spec, padded_vocab)),
      token_(token_parameter(spec)),
      has_positions_(spec.positions > 0),
      scale_(spec.embedding_scale),
      dropout_(spec.embedding_dropout) {}

at::Tensor DecoderEmbedding::rows(const at::Tensor& table, const at::Tensor& tokens) const {
  at::Tensor of_tokens = at::embedding(table, tokens);
  return scale_ == 1 ? of_tokens : of_tokens.mul_(rounded(scale_, table.scalar_type()));
}

at::Tensor DecoderEmbedding::forward(const PassContext& context, const UnitViews& parameters,
                                     const at::Tensor& input, Saved* /*saved*/) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor sum = rows(parameters[token_], input);
  if (has_positions_) add_positions(sum, parameters[kPositionParameter], context.documents);
  drop_in_place(sum, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  return sum;
}

void DecoderEmbedding::recompute(const PassContext& /*context*/, const UnitViews& /*parameters*/,
                                 const at::Tensor& /*input*/, Saved& /*saved*/) const {}

at::Tensor DecoderEmbedding::backward(const PassContext& context, const UnitViews& /*parameters*/,
                                      const at::Tensor& input, Saved& /*saved*/,
                                      const at::Tensor& grad_output,
                                      const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (!gradients[token_].defined()) return {};  // not trained
  at::Tensor grad =
      with_dropout(grad_output, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  if (has_positions_) accumulate_positions(gradients[kPositionParameter], grad, context.documents);
  if (scale_ != 1) grad = grad.mul(rounded(scale_, grad.scalar_type()));
  accumulate_rows(gradients[token_], input.flatten(), grad.flatten(0, 1));
  return {};
}

at::Tensor DecoderEmbedding::extend(const UnitViews& parameters, const at::Tensor& input,
                                    KvCache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor sum = rows(parameters[token_], input);
  if (!has_positions_) return sum;
  const std::int64_t tokens = cache.length() + input.size(1);
  TORCH_CHECK(tokens <= cache.capacity(), "a sequence of ", tokens,
              " tokens is longer than the model's context of ", cache.capacity());
  return sum.add_(parameters[kPositionParameter].narrow(0, cache.length(), input.size(1)));
}

}  // namespace sluice::engine
