// Gradients of embeddings: adds rows to a table.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// gradient[ids[i]] += rows[i], for each i in ascending order, whatever the number of threads:
// gradient fp32 [V, C], ids int64 [N], rows [N, C].
void accumulate_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace sluice::engine
