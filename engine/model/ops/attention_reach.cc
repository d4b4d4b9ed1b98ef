#include "engine/model/ops/attention_reach.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

namespace sluice::engine {

at::Tensor hidden_keys(const AttentionReach& reach, std::int64_t tokens, at::Device device) {
  const at::Tensor at = at::arange(tokens, at::TensorOptions().dtype(at::kLong).device(device));
  // The distance back to a key; negative: ahead.
  const at::Tensor distance = (at.unsqueeze(1) - at.unsqueeze(0)).unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (reach.window != 0) hidden.logical_or_(distance >= reach.window);
  if (reach.documents == nullptr) return hidden;
  return hidden.logical_or(distance > reach.documents->positions.unsqueeze(2));
}

}  // namespace sluice::engine
