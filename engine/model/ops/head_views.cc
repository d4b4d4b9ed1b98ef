#include "engine/model/ops/head_views.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include <utility>

namespace sluice::engine {

HeadViews::HeadViews(at::Tensor of_queries, at::Tensor of_keys, at::Tensor of_values)
    : query(std::move(of_queries)), key(std::move(of_keys)), value(std::move(of_values)) {}

HeadViews::HeadViews(const at::Tensor& packed, const HeadShape& shape)
    : query(split_heads(packed.narrow(-1, 0, shape.query_width()), shape.heads)),
      key(split_heads(packed.narrow(-1, shape.query_width(), shape.key_width()), shape.kv_heads)),
      value(
          split_heads(packed.narrow(-1, shape.query_width() + shape.key_width(), shape.key_width()),
                      shape.kv_heads)) {}

HeadPart::HeadPart(const HeadShape& all, std::int64_t parts, std::int64_t index)
    : all_(all),
      shape_{
          .heads = all.heads / parts, .kv_heads = all.kv_heads / parts, .head_dim = all.head_dim},
      index_(index) {}

at::Tensor HeadPart::queries(const at::Tensor& of_all) const {
  return of_all.narrow(-1, index_ * shape_.query_width(), shape_.query_width());
}

at::Tensor HeadPart::keys(const at::Tensor& of_all) const {
  return of_all.narrow(-1, all_.query_width() + index_ * shape_.key_width(), shape_.key_width());
}

at::Tensor HeadPart::values(const at::Tensor& of_all) const {
  return of_all.narrow(-1, all_.query_width() + all_.key_width() + index_ * shape_.key_width(),
                       shape_.key_width());
}

at::Tensor HeadPart::packed(const at::Tensor& of_all) const {
  return at::cat({queries(of_all), keys(of_all), values(of_all)}, -1);
}

void HeadPart::put(const at::Tensor& packed, const at::Tensor& of_all) const {
  const auto copy = [&](const at::Tensor& to, std::int64_t first) {
    to.copy_(packed.narrow(-1, first, to.size(-1)));
  };
  copy(queries(of_all), 0);
  copy(keys(of_all), shape_.query_width());
  copy(values(of_all), shape_.query_width() + shape_.key_width());
}

at::Tensor split_heads(const at::Tensor& merged, std::int64_t heads) {
  return merged.unflatten(-1, {heads, merged.size(-1) / heads}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& split) { return split.transpose(1, 2).flatten(2); }

at::Tensor repeat_heads(const at::Tensor& of_keys, std::int64_t heads) {
  const std::int64_t groups = heads / of_keys.size(1);
  if (groups == 1) return of_keys;
  return of_keys.unsqueeze(2)
      .expand({of_keys.size(0), of_keys.size(1), groups, of_keys.size(2), of_keys.size(3)})
      .flatten(1, 2);
}

at::Tensor sum_groups(const at::Tensor& of_queries, std::int64_t kv_heads) {
  const std::int64_t groups = of_queries.size(1) / kv_heads;
  if (groups == 1) return of_queries;
  return at::sum(of_queries.unflatten(1, {kv_heads, groups}), {2});
}

}  // namespace sluice::engine
