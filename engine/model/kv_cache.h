// KvCache: every block's keys and values of one sequence's positions so far, so that new positions
// cost one pass over these alone. ModelUnit::extend() appends those of the new positions; advance()
// counts the positions when all blocks have processed them, and truncate() drops the last ones.
// Blocks with a recurrence have a state instead, which cannot be truncated.
//
// Memory:  ModelLayout::kv_cache_bytes(), allocated once. Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/model/model_layout.h"

namespace sluice::engine {

class KvCache {
 public:
  // `options`: dtype and device of the activations.
  KvCache(const ModelLayout& model, std::int64_t positions, const at::TensorOptions& options);

  std::int64_t length() const { return length_; }  // positions so far
  std::int64_t capacity() const { return capacity_; }
  void advance(std::int64_t positions) { length_ += positions; }
  // Leaves at most so many positions: none, if there are states that belong to other positions.
  void truncate(std::int64_t positions);

  // Appends heads as [1, heads, positions, head_dim]. Throws when full.
  void put(std::int64_t layer, const at::Tensor& key, const at::Tensor& value);
  // The first `positions` of a layer.
  at::Tensor keys(std::int64_t layer, std::int64_t positions) const;
  at::Tensor values(std::int64_t layer, std::int64_t positions) const;

  // A recurrence after the positions so far, of StateShape. The block writes what they are after
  // the positions that it appends.
  struct State {
    at::Tensor inputs;  // [1, inputs, input_width]
    at::Tensor heads;   // [1, heads, key_dim, value_dim]: fp32 (float64 for float64)
    std::int64_t length = 0;
  };
  // Counts the positions that are appended to a layer's state.
  const State& extend_state(std::int64_t layer, std::int64_t positions);

 private:
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
  std::vector<State> states_;
};

}  // namespace sluice::engine
