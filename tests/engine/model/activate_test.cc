#include "engine/model/ops/activate.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace sluice::engine {
namespace {

// Runs continue with the bits that they began with, at any width.
TEST(GatedSilu, HasTheSameBitsForARowAloneAndAmongOthers) {
  constexpr std::int64_t kRows = 7;
  at::manual_seed(3);
  for (const std::int64_t width : {20, 64, 80, 120}) {
    SCOPED_TRACE(width);
    const at::Tensor gate_and_up = at::randn({kRows, 2 * width});
    const at::Tensor gradient = at::randn({kRows, width});
    const auto backward = [&](std::int64_t first, std::int64_t rows) {
      at::Tensor inner = gate_and_up.narrow(0, first, rows).clone();
      at::Tensor outer = gradient.narrow(0, first, rows).clone();
      const at::Tensor product = gated(inner, Activation::kSilu);
      gated_backward(inner, outer, Activation::kSilu);
      EXPECT_TRUE(outer.equal(product));
      return at::cat({inner, outer}, 1);
    };
    const at::Tensor all = backward(0, kRows);
    for (std::int64_t row = 0; row < kRows; ++row)
      EXPECT_TRUE(backward(row, 1).equal(all.narrow(0, row, 1))) << row;
  }
}

}  // namespace
}  // namespace sluice::engine
