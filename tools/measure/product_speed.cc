#include "tools/measure/product_speed.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cstdint>

#include "aio/clock.h"
#include "engine/model/torch_types.h"

namespace sluice::tools {

double measure_cpu_products(offload::ElementType type) {
  constexpr std::int64_t kSize = 1024;
  constexpr std::int64_t kMeasuredNs = 500'000'000;
  constexpr double kOperations = 2.0 * kSize * kSize * kSize;
  const at::NoGradGuard no_tape;
  const SteadyClock clock;
  const auto options = at::TensorOptions().dtype(engine::scalar_type(type));
  const at::Tensor a = at::randn({kSize, kSize}, at::kFloat).to(options);
  const at::Tensor b = at::randn({kSize, kSize}, at::kFloat).to(options);
  at::Tensor product = at::empty({kSize, kSize}, options);
  at::mm_out(product, a, b);  // warms up
  double best = 0;
  const std::int64_t begin_ns = clock.now_ns();
  for (std::int64_t now_ns = begin_ns; now_ns - begin_ns < kMeasuredNs;) {
    const std::int64_t from_ns = now_ns;
    at::mm_out(product, a, b);
    now_ns = clock.now_ns();
    best = std::max(
        best, kOperations * 1e9 / static_cast<double>(std::max<std::int64_t>(now_ns - from_ns, 1)));
  }
  return best;
}

}  // namespace sluice::tools
