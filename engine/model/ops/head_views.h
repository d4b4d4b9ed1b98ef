// Views of attention's heads in packed rows: each position's queries of all heads, then its keys,
// then its values. If there are fewer heads of keys and values than of queries, neighbouring query
// heads share one (grouped queries: Ainslie et al., "GQA", 2023).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

struct HeadShape {
  std::int64_t heads = 1;     // of queries
  std::int64_t kv_heads = 1;  // of keys and of values; divides heads
  std::int64_t head_dim = 1;

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t key_width() const { return kv_heads * head_dim; }
  std::int64_t width() const { return query_width() + 2 * key_width(); }  // of a packed row
  std::int64_t groups() const { return heads / kv_heads; }                // queries per key
};

// The shape in which every query head has its own key head.
inline HeadShape equal_heads(std::int64_t heads, std::int64_t hidden) {
  return {.heads = heads, .kv_heads = heads, .head_dim = hidden / heads};
}

// Each as [B, its heads, T, head_dim].
struct HeadViews {
  HeadViews(at::Tensor of_queries, at::Tensor of_keys, at::Tensor of_values);
  // Views of a packed [B, T, shape.width()].
  HeadViews(const at::Tensor& packed, const HeadShape& shape);
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// Some heads of keys and values with their queries: one of several equal parts.
class HeadPart {
 public:
  HeadPart(const HeadShape& all, std::int64_t parts, std::int64_t index);

  const HeadShape& shape() const { return shape_; }  // of the part
  // The part's columns of [B, T, all.query_width()]: a view.
  at::Tensor queries(const at::Tensor& of_all) const;
  // The part's columns of packed rows: a packed copy, and the way back.
  at::Tensor packed(const at::Tensor& of_all) const;
  void put(const at::Tensor& packed, const at::Tensor& of_all) const;

 private:
  at::Tensor keys(const at::Tensor& of_all) const;
  at::Tensor values(const at::Tensor& of_all) const;

  HeadShape all_;
  HeadShape shape_;
  std::int64_t index_;
};

// [B, T, C] as [B, heads, T, head_dim], and back, without a copy if the memory layout allows.
at::Tensor split_heads(const at::Tensor& merged, std::int64_t heads);
at::Tensor merge_heads(const at::Tensor& split);

// Keys or values repeated for each query head, [B, heads, T, head_dim]: a copy, unless there are
// equally many.
at::Tensor repeat_heads(const at::Tensor& of_keys, std::int64_t heads);
// The inverse for gradients: sums over the query heads of each key.
at::Tensor sum_groups(const at::Tensor& of_queries, std::int64_t kv_heads);

}  // namespace sluice::engine
