#include "engine/model/ops/attention_sinks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logaddexp.h>

#include <cstdint>

#include "engine/model/ops/head_views.h"

namespace sluice::engine {
namespace {

// Numbers of each head and position as [B, heads, T].
at::Tensor by_sequence(const at::Tensor& sums, const at::Tensor& output) {
  if (sums.dim() == 3) return sums;
  return sums.view({sums.size(0), output.size(0), output.size(1)}).transpose(0, 1);
}

}  // namespace

void add_sinks(Attended& attended, const at::Tensor& sinks) {
  const at::Tensor column = sinks.to(attended.logsumexp.scalar_type()).unsqueeze(1);
  at::Tensor sums = at::logaddexp(attended.logsumexp, column);
  const at::Tensor left = attended.logsumexp.sub(sums).exp_();
  at::Tensor outputs = split_heads(attended.output, sinks.size(0));
  outputs.mul_(by_sequence(left, attended.output).unsqueeze(-1));
  attended.logsumexp = std::move(sums);
}

void accumulate_sink_gradient(const at::Tensor& gradient, const at::Tensor& grad_output,
                              const Attended& attended, const at::Tensor& sinks) {
  const at::ScalarType wide = attended.logsumexp.scalar_type();
  const std::int64_t heads = sinks.size(0);
  const at::Tensor sums = by_sequence(attended.logsumexp, attended.output);
  const at::Tensor outputs = split_heads(attended.output, heads);
  const at::Tensor grads = split_heads(grad_output, heads);
  // One head at a time, so that copies in fp32 are small. Their sums are made together: that of one
  // head alone would be divided among threads.
  const at::Tensor shares = at::empty({heads, sums.size(0), sums.size(2)}, sums.options());
  for (std::int64_t head = 0; head < heads; ++head) {
    const at::Tensor along = grads.select(1, head).to(wide).mul(outputs.select(1, head)).sum({-1});
    shares[head].copy_(sinks[head].to(wide).sub(sums.select(1, head)).exp_().mul_(along));
  }
  gradient.sub_(shares.flatten(1).sum({1}));
}

}  // namespace sluice::engine
