// Attention sinks around kernels that know nothing of them: one more score per head, a parameter,
// whose probability is dropped.
//
// A kernel's output is scaled by what the sink leaves, and the sink joins the logarithm of sums.
// From this sum and that output, the kernel's backward computes exact gradients of queries, keys
// and values. These depend only on the probabilities, and on the product of the output with its
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/attention.h"

namespace sluice::engine {

// Changes the output in place. Sums may be [B, heads, T], or [heads, B * T].
void add_sinks(Attended& attended, const at::Tensor& sinks);

// gradient (fp32, [heads]) += that of the sinks. `attended` has the sinks.
void accumulate_sink_gradient(const at::Tensor& gradient, const at::Tensor& grad_output,
                              const Attended& attended, const at::Tensor& sinks);

}  // namespace sluice::engine
