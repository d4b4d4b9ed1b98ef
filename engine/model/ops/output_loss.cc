#include "engine/model/ops/output_loss.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/model/ops/linear.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

// Returns whether any target is ignored.
bool check_targets(const at::Tensor& targets, std::int64_t vocab) {
  const auto* const id = targets.const_data_ptr<std::int64_t>();
  bool ignored = false;
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    if (id[i] == kIgnoredTarget) {
      ignored = true;
      continue;
    }
    TORCH_CHECK_INDEX(id[i] >= 0 && id[i] < vocab, "target token ", id[i],
                      " is outside the vocabulary of ", vocab);
  }
  return ignored;
}

at::Tensor cpu_cross_entropy(at::Tensor& logits, const at::Tensor& targets,
                             const CrossEntropyOptions& options) {
  const bool ignored = check_targets(targets, options.vocab);
  at::Tensor real = logits.narrow(1, 0, options.vocab);
  at::Tensor log_p = at::log_softmax(real, 1, at::toOpMathType(logits.scalar_type()));
  const at::Tensor column = (ignored ? targets.clamp_min(0) : targets).unsqueeze(1);
  at::Tensor losses = log_p.gather(1, column).squeeze(1).neg_();
  const at::Tensor left_out = ignored ? targets.eq(kIgnoredTarget) : at::Tensor();
  if (ignored) losses.masked_fill_(left_out, 0);
  if (!options.gradient) return losses;
  const at::Tensor& gradient = log_p.exp_();
  gradient.scatter_(1, column, gradient.gather(1, column).sub_(1));
  if (ignored) gradient.masked_fill_(left_out.unsqueeze(1), 0);
  real.copy_(gradient.mul_(options.grad_scale));
  if (options.vocab < logits.size(1)) {
    logits.narrow(1, options.vocab, logits.size(1) - options.vocab).zero_();
  }
  return losses;
}

}  // namespace

at::Tensor cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyOptions& options) {
  if (logits.is_cpu()) return cpu_cross_entropy(logits, targets, options);
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  cuda_cross_entropy(logits, targets, losses, options);
  return losses;
}

void cap_logits(at::Tensor& logits, double soft_cap) {
  if (soft_cap > 0) logits.div_(soft_cap).tanh_().mul_(soft_cap);
}

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
    cap_logits(logits, options.soft_cap);
    const at::Tensor capped = options.soft_cap > 0 ? logits.div(options.soft_cap) : at::Tensor();
    loss.sum.add_(cross_entropy_in_place(logits, targets.narrow(0, first, count),
                                         {.vocab = options.vocab, .grad_scale = options.grad_scale})
                      .sum(at::kDouble));
    if (capped.defined()) at::tanh_backward_out(logits, logits, capped);
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
    cap_logits(logits, options.soft_cap);
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
    cap_logits(logits, options.soft_cap);
    losses.push_back(cross_entropy_in_place(logits, targets.narrow(0, first, count),
                                            {.vocab = options.vocab, .gradient = false}));
  });
  return at::cat(losses);
}

}  // namespace sluice::engine
