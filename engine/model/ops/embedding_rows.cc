#include "engine/model/ops/embedding_rows.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/index_put.h>

namespace sluice::engine {
namespace {

constexpr std::int64_t kColumnsPerTask = 64;

// Each task owns columns, not rows, so that a repeated token is no race.
template <typename Row, typename Sum>
void add_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  const std::int64_t columns = rows.size(1);
  const std::int64_t count = rows.size(0);
  const auto* const id = ids.const_data_ptr<std::int64_t>();
  const Row* const from = rows.const_data_ptr<Row>();
  Sum* const to = gradient.mutable_data_ptr<Sum>();
  at::parallel_for(0, columns, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i) {
      Sum* const sum = to + id[i] * columns;
      const Row* const row = from + i * columns;
      for (std::int64_t c = begin; c < end; ++c) sum[c] += static_cast<Sum>(row[c]);
    }
  });
}

}  // namespace

void accumulate_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  if (gradient.is_cuda()) {
    // This sorts, so the order of the additions is fixed.
    at::Tensor sum = gradient;
    at::index_put_(sum, {ids}, rows.to(gradient.scalar_type()), /*accumulate=*/true);
    return;
  }
  TORCH_CHECK(gradient.is_contiguous() && ids.is_contiguous() && rows.is_contiguous(),
              "embedding gradients are added between contiguous tensors");
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, rows.scalar_type(), "accumulate_rows",
      [&] { add_rows<scalar_t, at::opmath_type<scalar_t>>(gradient, ids, rows); });
}

}  // namespace sluice::engine
