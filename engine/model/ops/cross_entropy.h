// Cross-entropy of a chunk of logits, with the gradient written over the logits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {

// Returns the rows' losses in nats (fp32; float64 for float64), with the softmax in fp32. Replaces
// logits [rows, columns] by the gradient of grad_scale times the losses' sum, with zeros in columns
// from `vocab` on. Without options.gradient the contents of logits are undefined afterwards. A
// target outside the vocabulary throws on the CPU and is a NaN loss on CUDA; kIgnoredTarget has no
// loss and no gradient.
at::Tensor cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets,
                                  const CrossEntropyOptions& options);

}  // namespace sluice::engine
