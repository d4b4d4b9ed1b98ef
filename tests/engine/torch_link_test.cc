// LibTorch as found by the build links, computes, differentiates, and can be included together with
// our log header.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aio/log.h"

namespace sluice {
namespace {

using testing::ElementsAre;

at::Tensor matrix(std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  return at::from_blob(values.data(), {rows, columns}, at::kFloat).clone();
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const float* const first = flat.const_data_ptr<float>();
  return {first, first + flat.numel()};
}

TEST(TorchLink, MultipliesMatrices) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<float> b = {1, 0, -1, 2, 0.5, 3};
  const at::Tensor product = at::matmul(matrix(a, 2, 3), matrix(b, 3, 2));
  EXPECT_THAT(values_of(product), ElementsAre(0.5F, 13.0F, 2.0F, 28.0F));
}

TEST(TorchLink, DifferentiatesAMatrixProduct) {
  std::vector<float> w_values = {1, -2, 3, 4};
  std::vector<float> x_values = {5, 7};
  at::Tensor w = matrix(w_values, 2, 2);
  w.requires_grad_();
  const at::Tensor x = matrix(x_values, 2, 1);
  // loss = |W x|^2 = (-9)^2 + 43^2, so dloss/dW = 2 (W x) x^T.
  const at::Tensor y = at::matmul(w, x);
  const at::Tensor loss = at::matmul(y.t(), y).sum();
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 1930.0F);
  EXPECT_THAT(values_of(w.grad()), ElementsAre(-90.0F, -126.0F, 430.0F, 602.0F));
}

TEST(TorchLink, SharesAFileWithOurLog) {
  std::string said;
  log::set_sink([&said](log::Level, std::string_view message) { said = message; });
  log::info(at::zeros({2, 3}).toString());
  log::set_sink({});
  EXPECT_EQ(said, "CPUFloatType");
}

}  // namespace
}  // namespace sluice
