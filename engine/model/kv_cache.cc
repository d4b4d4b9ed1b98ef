#include "engine/model/kv_cache.h"

#include <ATen/ops/empty.h>

namespace sluice::engine {

KvCache::KvCache(const ModelLayout& model, std::int64_t positions, const at::TensorOptions& options)
    : capacity_(positions) {
  for (int unit = 0; unit < model.units(); ++unit) {
    if (!model.is_block(unit)) continue;
    const KvShape kv = model.kind(unit).kv_shape();
    const std::vector<std::int64_t> sizes = {1, kv.heads, positions, kv.head_dim};
    keys_.push_back(at::empty(sizes, options));
    values_.push_back(at::empty(sizes, options));
  }
}

void KvCache::put(std::int64_t layer, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t positions = key.size(2);
  TORCH_CHECK(length_ + positions <= capacity_, "a sequence of ", length_ + positions,
              " tokens is longer than the model's context of ", capacity_);
  const auto index = static_cast<std::size_t>(layer);
  keys_[index].narrow(2, length_, positions).copy_(key);
  values_[index].narrow(2, length_, positions).copy_(value);
}

at::Tensor KvCache::keys(std::int64_t layer, std::int64_t positions) const {
  return keys_[static_cast<std::size_t>(layer)].narrow(2, 0, positions);
}

at::Tensor KvCache::values(std::int64_t layer, std::int64_t positions) const {
  return values_[static_cast<std::size_t>(layer)].narrow(2, 0, positions);
}

}  // namespace sluice::engine
