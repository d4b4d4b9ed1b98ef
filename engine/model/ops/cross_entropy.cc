#include "engine/model/ops/cross_entropy.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>

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

}  // namespace sluice::engine
