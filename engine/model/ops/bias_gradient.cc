#include "engine/model/ops/bias_gradient.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {

void accumulate_bias_gradient(const at::Tensor& gradient, const at::Tensor& rows) {
  if (gradient.defined()) drop_and_accumulate(rows, {}, gradient);
}

at::Tensor drop_and_accumulate(const at::Tensor& rows, const Dropout& dropout,
                               const at::Tensor& gradient) {
  if (!gradient.defined()) return with_dropout(rows, dropout);
  if (cuda_fuses(rows)) return fused_dropout_and_sum(rows, dropout, gradient);
  at::Tensor dropped = with_dropout(rows, dropout);
  const at::Tensor matrix = dropped.reshape({-1, rows.size(-1)});
  if (rows.is_cuda() && rows.scalar_type() == gradient.scalar_type()) {
    // Here at::sum would take more memory than all of the rows.
    gradient.addmv_(matrix.t(), at::ones({matrix.size(0)}, matrix.options()));
  } else {
    gradient.add_(at::sum(matrix, {0}, false, gradient.scalar_type()));
  }
  return dropped;
}

}  // namespace sluice::engine
