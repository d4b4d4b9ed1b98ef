#include "engine/model/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace sluice::engine {

KvCache::KvCache(const ModelLayout& model, std::int64_t positions, const at::TensorOptions& options)
    : capacity_(positions) {
  for (int unit = 0; unit < model.units(); ++unit) {
    if (!model.is_block(unit)) continue;
    const KvShape kv = model.kind(unit).kv_shape();
    const std::vector<std::int64_t> sizes = {1, kv.heads, positions, kv.head_dim};
    keys_.push_back(at::empty(sizes, options));
    values_.push_back(at::empty(sizes, options));
    const StateShape state = model.kind(unit).state_shape();
    const bool is_double = options.dtype() == at::kDouble;
    states_.push_back({.inputs = at::zeros({1, state.inputs, state.input_width}, options),
                       .heads = at::zeros({1, state.heads, state.key_dim, state.value_dim},
                                          options.dtype(is_double ? at::kDouble : at::kFloat))});
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

void KvCache::truncate(std::int64_t positions) {
  length_ = std::min(length_, positions);
  const auto is_elsewhere = [this](const State& state) {
    return state.heads.numel() > 0 && state.length != length_;
  };
  if (std::none_of(states_.begin(), states_.end(), is_elsewhere)) return;
  length_ = 0;
  for (State& state : states_) {
    state.inputs.zero_();
    state.heads.zero_();
    state.length = 0;
  }
}

const KvCache::State& KvCache::extend_state(std::int64_t layer, std::int64_t positions) {
  State& state = states_[static_cast<std::size_t>(layer)];
  TORCH_CHECK(state.length == length_, "block ", layer, " has the state after ", state.length,
              " positions, but the text has ", length_, "; call truncate()");
  state.length += positions;
  return state;
}

at::Tensor KvCache::keys(std::int64_t layer, std::int64_t positions) const {
  return keys_[static_cast<std::size_t>(layer)].narrow(2, 0, positions);
}

at::Tensor KvCache::values(std::int64_t layer, std::int64_t positions) const {
  return values_[static_cast<std::size_t>(layer)].narrow(2, 0, positions);
}

}  // namespace sluice::engine
