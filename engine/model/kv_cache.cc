#include "engine/model/kv_cache.h"

#include <ATen/ops/empty.h>

namespace sluice::engine {

KvCache::KvCache(const GptShape& shape, const at::TensorOptions& options)
    : capacity_(shape.context_tokens) {
  const std::vector<std::int64_t> sizes = {1, shape.heads, shape.context_tokens, shape.head_dim()};
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    keys_.push_back(at::empty(sizes, options));
    values_.push_back(at::empty(sizes, options));
  }
}

std::uint64_t KvCache::bytes(const GptShape& shape, std::uint64_t number_bytes) {
  return 2 * static_cast<std::uint64_t>(shape.layers * shape.context_tokens * shape.hidden) *
         number_bytes;
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
