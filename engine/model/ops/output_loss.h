// The output projection and the cross-entropy behind it, in chunks of rows, so that the logits of a
// micro-batch never stand whole in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

struct OutputLossOptions {
  std::int64_t vocab = 0;       // rows of `output` from here on are zero and take no part
  std::int64_t chunk_rows = 1;  // of logits at once
  double grad_scale = 1;        // gradients are those of grad_scale times the sum
};

struct OutputLoss {
  at::Tensor sum;        // of all rows' losses, nats; float64 scalar on their device
  at::Tensor grad_rows;  // as rows
};
// rows [N, C], output [>= vocab, C] and output_gradient (fp32, added to; undefined: not wanted) as
// output; targets [N],
// where kIgnoredTarget (cross_entropy.h) is no loss.
OutputLoss output_loss_and_gradient(const at::Tensor& rows, const at::Tensor& output,
                                    const at::Tensor& targets, const OutputLossOptions& options,
                                    const at::Tensor& output_gradient);
// The same sum, without gradients.
at::Tensor output_loss(const at::Tensor& rows, const at::Tensor& output, const at::Tensor& targets,
                       const OutputLossOptions& options);

// Each row's: [N], fp32 (float64 for float64), 0 where the target is ignored.
at::Tensor output_losses(const at::Tensor& rows, const at::Tensor& output,
                         const at::Tensor& targets, const OutputLossOptions& options);

}  // namespace sluice::engine
