#include "engine/model/ops/joined_rows.h"

namespace sluice::engine {

std::optional<at::Tensor> joined_rows(const UnitViews& views, int first, int count) {
  const at::Tensor& begin = views[first];
  std::vector<std::int64_t> shape = begin.sizes().vec();
  std::int64_t end = begin.storage_offset() + begin.numel();
  for (int i = first + 1; i < first + count; ++i) {
    const at::Tensor& next = views[i];
    if (!next.is_alias_of(begin) || next.storage_offset() != end ||
        next.sizes().slice(1) != begin.sizes().slice(1))
      return std::nullopt;
    end += next.numel();
    shape.front() += next.size(0);
  }
  return begin.as_strided(shape, begin.strides(), begin.storage_offset());
}

}  // namespace sluice::engine
