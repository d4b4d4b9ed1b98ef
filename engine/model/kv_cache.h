// KvCache: every block's keys and values of one sequence's positions so far, so that new positions
// cost one pass over these alone. ModelUnit::extend() appends those of the new positions; advance()
// counts the positions when all blocks have processed them, and truncate() drops the last ones.
//
// Memory:  ModelLayout::kv_cache_bytes(), allocated once. Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
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
  void truncate(std::int64_t positions) { length_ = std::min(length_, positions); }

  // Appends heads as [1, heads, positions, head_dim]. Throws when full.
  void put(std::int64_t layer, const at::Tensor& key, const at::Tensor& value);
  // The first `positions` of a layer.
  at::Tensor keys(std::int64_t layer, std::int64_t positions) const;
  at::Tensor values(std::int64_t layer, std::int64_t positions) const;

 private:
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
};

}  // namespace sluice::engine
