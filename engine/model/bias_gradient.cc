#include "engine/model/bias_gradient.h"

#include <ATen/ops/sum.h>

#include "engine/model/fused_kernels.h"

namespace sluice::engine {

void accumulate_bias_gradient(const at::Tensor& gradient, const at::Tensor& rows) {
  drop_and_accumulate(rows, {}, gradient);
}

at::Tensor drop_and_accumulate(const at::Tensor& rows, const Dropout& dropout,
                               const at::Tensor& gradient) {
  if (cuda_fuses(rows)) return fused_dropout_and_sum(rows, dropout, gradient);
  at::Tensor dropped = with_dropout(rows, dropout);
  gradient.add_(at::sum(dropped.reshape({-1, rows.size(-1)}), {0}, false, gradient.scalar_type()));
  return dropped;
}

}  // namespace sluice::engine
