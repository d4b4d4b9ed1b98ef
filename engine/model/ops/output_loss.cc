#include "engine/model/ops/output_loss.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/model/ops/cross_entropy.h"
#include "engine/model/ops/linear.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

template <typename Visit>
void for_each_chunk(std::int64_t rows, std::int64_t chunk_rows, Visit visit) {
  for (std::int64_t first = 0; first < rows; first += chunk_rows) {
    visit(first, std::min(chunk_rows, rows - first));
  }
}

at::Tensor zero_sum(const at::Tensor& rows) {
  return at::zeros({}, rows.options().dtype(at::kDouble));
}

}  // namespace

OutputLoss output_loss_and_gradient(const at::Tensor& rows, const at::Tensor& output,
                                    const at::Tensor& targets, const OutputLossOptions& options,
                                    const at::Tensor& output_gradient) {
  OutputLoss loss = {zero_sum(rows), at::empty_like(rows)};
  for_each_chunk(rows.size(0), options.chunk_rows, [&](std::int64_t first, std::int64_t count) {
    const at::Tensor x = rows.narrow(0, first, count);
    at::Tensor logits = product(x, output.t());
    loss.sum.add_(cross_entropy_in_place(logits, targets.narrow(0, first, count),
                                         {.vocab = options.vocab, .grad_scale = options.grad_scale})
                      .sum(at::kDouble));
    at::Tensor grad_x = loss.grad_rows.narrow(0, first, count);
    product_out(grad_x, logits, output);
    if (output_gradient.defined()) accumulate_weight_gradient(output_gradient, logits, x);
  });
  return loss;
}

at::Tensor output_loss(const at::Tensor& rows, const at::Tensor& output, const at::Tensor& targets,
                       const OutputLossOptions& options) {
  at::Tensor sum = zero_sum(rows);
  for_each_chunk(rows.size(0), options.chunk_rows, [&](std::int64_t first, std::int64_t count) {
    at::Tensor logits = product(rows.narrow(0, first, count), output.t());
    sum.add_(cross_entropy_in_place(logits, targets.narrow(0, first, count),
                                    {.vocab = options.vocab, .gradient = false})
                 .sum(at::kDouble));
  });
  return sum;
}

at::Tensor output_losses(const at::Tensor& rows, const at::Tensor& output,
                         const at::Tensor& targets, const OutputLossOptions& options) {
  std::vector<at::Tensor> losses;
  for_each_chunk(rows.size(0), options.chunk_rows, [&](std::int64_t first, std::int64_t count) {
    at::Tensor logits = product(rows.narrow(0, first, count), output.t());
    losses.push_back(cross_entropy_in_place(logits, targets.narrow(0, first, count),
                                            {.vocab = options.vocab, .gradient = false}));
  });
  return at::cat(losses);
}

}  // namespace sluice::engine
