#include "engine/model/gpt2/gpt2_embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/sum.h>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/ops/dropout.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kColumnsPerTask = 64;

// Each task owns columns, not rows: a token that occurs twice is no race.
template <typename Row, typename Sum>
void add_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  const std::int64_t columns = rows.size(1);
  const std::int64_t count = rows.size(0);
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  const Row* const from = rows.const_data_ptr<Row>();
  Sum* const to = gradient.mutable_data_ptr<Sum>();
  at::parallel_for(0, columns, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i) {
      Sum* const sum = to + id[i] * columns;
      const Row* const row = from + i * columns;
      for (std::int64_t c = begin; c < end; ++c) sum[c] += static_cast<Sum>(row[c]);
    }
  });
}

}  // namespace

void accumulate_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  if (gradient.is_cuda()) {
    // Sorts, so the order of the additions is fixed.
    at::Tensor sum = gradient;
    at::index_put_(sum, {ids}, rows.to(gradient.scalar_type()), /*accumulate=*/true);
    return;
  }
  TORCH_CHECK(gradient.is_contiguous() && ids.is_contiguous() && rows.is_contiguous(),
              "embedding gradients are added between contiguous tensors");
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, rows.scalar_type(), "accumulate_rows",
      [&] { add_rows<scalar_t, at::opmath_type<scalar_t>>(gradient, ids, rows); });
}

Gpt2Embedding::Gpt2Embedding(const ModelShape& shape, std::int64_t padded_vocab)
    : ModelUnit(gpt2_embedding_layout(shape, padded_vocab)), dropout_(shape.dropout) {}

at::Tensor Gpt2Embedding::forward(const PassContext& context, const UnitViews& parameters,
                                  const at::Tensor& input, Saved* /*saved*/) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& positions = parameters[embedding_parameter::kPosition];
  TORCH_CHECK(input.size(1) <= positions.size(0), "a sequence of ", input.size(1),
              " tokens is longer than the model's context of ", positions.size(0));
  at::Tensor sum = at::embedding(parameters[embedding_parameter::kToken], input);
  sum.add_(positions.narrow(0, 0, input.size(1)));
  drop_in_place(sum, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  return sum;
}

void Gpt2Embedding::recompute(const PassContext& /*context*/, const UnitViews& /*parameters*/,
                              const at::Tensor& /*input*/, Saved& /*saved*/) const {}

at::Tensor Gpt2Embedding::backward(const PassContext& context, const UnitViews& /*parameters*/,
                                   const at::Tensor& input, Saved& /*saved*/,
                                   const at::Tensor& grad_output,
                                   const UnitViews& gradients) const {
  const at::NoGradGuard no_grad;
  const at::Tensor grad =
      with_dropout(grad_output, dropout_at(context, DropoutSite::kEmbedding, dropout_));
  const at::Tensor& positions = gradients[embedding_parameter::kPosition];
  positions.narrow(0, 0, input.size(1)).add_(at::sum(grad, {0}, false, positions.scalar_type()));
  accumulate_rows(gradients[embedding_parameter::kToken], input.flatten(), grad.flatten(0, 1));
  return {};
}

at::Tensor Gpt2Embedding::extend(const UnitViews& parameters, const at::Tensor& input,
                                 KvCache& cache) const {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(cache.length() + input.size(1) <= cache.capacity(), "a sequence of ",
              cache.length() + input.size(1), " tokens is longer than the model's context of ",
              cache.capacity());
  at::Tensor sum = at::embedding(parameters[embedding_parameter::kToken], input);
  return sum.add_(
      parameters[embedding_parameter::kPosition].narrow(0, cache.length(), input.size(1)));
}

}  // namespace sluice::engine
