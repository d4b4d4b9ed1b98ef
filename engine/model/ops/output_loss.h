// The output projection and the cross-entropy, in chunks of rows, so that a micro-batch's logits
// are never in memory as a whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {

// Returns the rows' losses in nats (fp32; float64 for float64), with the softmax in fp32. Replaces
// logits [rows, columns] by the gradient of grad_scale times the losses' sum, with zeros in columns
// from `vocab` on. Without options.gradient the contents of logits are undefined afterwards. A
// target outside the vocabulary throws on the CPU and is a NaN loss on CUDA; kIgnoredTarget has no
// loss and no gradient.
at::Tensor cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyOptions& options);

struct OutputLossOptions {
  std::int64_t vocab = 0;       // later rows of `output` are zero and take no part
  std::int64_t chunk_rows = 1;  // rows of logits at once
  double soft_cap = 0;          // DecoderSpec::logit_cap
  double grad_scale = 1;        // gradients are those of grad_scale times the sum
};

// In place, by OutputLossOptions::soft_cap.
void cap_logits(at::Tensor& logits, double soft_cap);

struct OutputLoss {
  at::Tensor sum;        // of all rows' losses, nats; float64 scalar on their device
  at::Tensor grad_rows;  // shaped as `rows`
};
// rows [N, C], output [>= vocab, C], targets [N]. output_gradient has output's shape (fp32, added
// to; undefined: not wanted). A target of kIgnoredTarget (cuda_kernels.h) has no loss.
OutputLoss output_loss_and_gradient(const at::Tensor& rows, const at::Tensor& output,
                                    const at::Tensor& targets, const OutputLossOptions& options,
                                    const at::Tensor& output_gradient);
// The same sum, without gradients.
at::Tensor output_loss(const at::Tensor& rows, const at::Tensor& output, const at::Tensor& targets,
                       const OutputLossOptions& options);

// Each row's loss: [N], fp32 (float64 for float64), 0 for ignored targets.
at::Tensor output_losses(const at::Tensor& rows, const at::Tensor& output,
                         const at::Tensor& targets, const OutputLossOptions& options);

}  // namespace sluice::engine
