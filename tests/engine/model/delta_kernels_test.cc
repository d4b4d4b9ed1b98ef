// Compares the kernels around a gated delta rule with ATen's operators in float64 on the CPU, on
// the same 16-bit inputs; and their bits between two calls. Skipped without a GPU.
#include <gtest/gtest.h>

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/model/ops/causal_conv.h"
#include "engine/model/ops/gated_norm.h"

namespace sluice::engine {
namespace {

class DeltaKernelsCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  }
};

// Rows with the same documents, of these lengths.
Documents documents_of(const std::vector<std::int64_t>& lengths, std::int64_t rows) {
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const std::int64_t length : lengths)
      for (std::int64_t i = 0; i < length; ++i) positions.push_back(i);
  return {.positions = at::tensor(positions).view({rows, -1})};
}

// The error relative to the larger of the numbers' size and 0.1: far in a SiLU's tail, the rounding
// of its argument changes a tiny result by much.
double size_error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor host = ours.cpu().to(at::kDouble);
  const double least = 0.1 * std::sqrt(static_cast<double>(expected.numel()));
  return (host - expected).norm().item<double>() / std::max(expected.norm().item<double>(), least);
}

// The larger error of all and of the tokens after the first, whose numbers may be far larger.
double difference(const at::Tensor& ours, const at::Tensor& expected) {
  const double all = size_error(ours, expected);
  if (ours.dim() != 3 || ours.size(1) == 1) return all;
  const std::int64_t count = ours.size(1) - 1;
  return std::max(all, size_error(ours.narrow(1, 1, count), expected.narrow(1, 1, count)));
}

// Rows with hostile numbers: zeros, and from column `first` on two far in the tails of a SiLU.
at::Tensor hostile(at::IntArrayRef sizes, std::int64_t first, at::ScalarType dtype) {
  const at::Tensor made = at::randn(sizes, at::kDouble).mul_(2);
  made.select(1, 0).zero_();
  made.select(-1, first).fill_(-40);
  made.select(-1, first + 1).fill_(40);
  return made.to(dtype);
}

// Input and gradients are views of wider rows, as in a block.
void expect_conv_kernel(at::ScalarType dtype, std::int64_t rows, std::int64_t channels,
                        const std::vector<std::int64_t>& lengths, bool is_packed) {
  SCOPED_TRACE(testing::Message() << rows << " " << channels << " " << lengths.size());
  const Documents cut = documents_of(lengths, rows);
  const Documents there = {.positions = cut.positions.cuda()};
  const std::int64_t tokens = cut.positions.size(1);
  const at::Tensor wide = hostile({rows, tokens, channels + 6}, 2, dtype);
  const at::Tensor weight = at::randn({channels, 1, 4}, at::kDouble).to(dtype);
  const at::Tensor gradient = at::randn({rows, tokens, channels}, at::kDouble).to(dtype);
  const auto pass = [&](at::TensorOptions options, const Documents* documents) {
    const at::Tensor input = wide.to(options).narrow(-1, 2, channels);
    const at::Tensor w = weight.to(options);
    const at::Tensor to = at::zeros(wide.sizes(), options);
    const bool is_double = options.dtype() == at::kDouble;
    const at::Tensor sums =
        at::zeros(weight.sizes(), options.dtype(is_double ? at::kDouble : at::kFloat)).add_(1);
    const at::Tensor output = causal_conv_silu(input, w, documents);
    causal_conv_silu_backward(gradient.to(options), input, w, documents, to.narrow(-1, 2, channels),
                              sums);
    return std::vector<at::Tensor>{output, to, sums.sub_(1)};
  };
  const auto cuda = at::TensorOptions(dtype).device(at::kCUDA);
  const auto ours = pass(cuda, is_packed ? &there : nullptr);
  const auto again = pass(cuda, is_packed ? &there : nullptr);
  const auto expected = pass(at::kDouble, is_packed ? &cut : nullptr);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LT(difference(ours[i], expected[i]), 1e-2) << i;
    EXPECT_TRUE(ours[i].equal(again[i])) << i;
  }
}

TEST_F(DeltaKernelsCuda, ConvolvesAsInFloat64) {
  at::manual_seed(17);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const std::int64_t channels : {2, 258, 1024, 7})  // the last by ATen
      for (const std::int64_t rows : {1, 3})
        for (const auto& lengths :
             {std::vector<std::int64_t>{1}, {3}, {64}, {1, 1, 62, 1, 2, 70}, {200}})
          for (const bool is_packed : {false, true})
            expect_conv_kernel(dtype, rows, channels, lengths, is_packed);
}

TEST_F(DeltaKernelsCuda, ConvolvesWithoutReadingOtherDocuments) {
  const Documents documents = {.positions = documents_of({62, 5}, 1).positions.cuda()};
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  const at::Tensor input = at::zeros({1, 67, 2}, options).add_(1);
  input.narrow(1, 0, 62).fill_(std::nan(""));
  const at::Tensor weight = at::zeros({2, 1, 4}, options).add_(1);
  const at::Tensor grad = at::empty(input.sizes(), options);
  EXPECT_FALSE(
      causal_conv_silu(input, weight, &documents).narrow(1, 62, 5).isnan().any().item<bool>());
  causal_conv_silu_backward(input, input, weight, &documents, grad, {});
  EXPECT_FALSE(grad.narrow(1, 62, 5).isnan().any().item<bool>());
}

TEST_F(DeltaKernelsCuda, NormsWithAGateAsInFloat64) {
  at::manual_seed(19);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const std::int64_t dim : {8, 32, 128, 256, 24})  // the last by ATen
      for (const auto& [tokens, heads] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 3}, {2500, 5}}) {
        SCOPED_TRACE(testing::Message() << dtype << " " << dim << " " << tokens);
        const std::int64_t width = heads * dim;
        const at::Tensor input = at::randn({2, tokens, width}, at::kDouble).to(dtype);
        const at::Tensor gates = hostile({2, tokens, width + 16}, 8, dtype);
        const at::Tensor weight = at::randn({dim}, at::kDouble).to(dtype);
        const at::Tensor gradient = at::randn({2, tokens, width}, at::kDouble).to(dtype);
        if (tokens > 1) input.select(1, 0).mul_(0.1);  // a large reciprocal deviation
        const auto pass = [&](at::TensorOptions options) {
          const bool is_double = options.dtype() == at::kDouble;
          const at::Tensor sums =
              at::zeros({dim}, options.dtype(is_double ? at::kDouble : at::kFloat)).add_(1);
          const at::Tensor gate = gates.to(options).narrow(-1, 8, width);
          const at::Tensor w = weight.to(options);
          const at::Tensor grad_gate = at::zeros(gates.sizes(), options);
          at::Tensor grad = gradient.to(options).clone();
          const at::Tensor x = input.to(options);
          const at::Tensor output = gated_rms_norm(x, gate, w, 1e-6);
          gated_rms_norm_backward(grad, x, gate, w, 1e-6, grad_gate.narrow(-1, 8, width), sums);
          return std::vector<at::Tensor>{output, grad, grad_gate, sums.sub_(1)};
        };
        const auto cuda = at::TensorOptions(dtype).device(at::kCUDA);
        const auto ours = pass(cuda);
        const auto again = pass(cuda);
        const auto expected = pass(at::kDouble);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          EXPECT_LT(difference(ours[i], expected[i]), 1.5e-2) << i;
          EXPECT_TRUE(ours[i].equal(again[i])) << i;
        }
      }
}

}  // namespace
}  // namespace sluice::engine

#else

namespace {
TEST(DeltaKernelsCuda, MatchFloat64) { GTEST_SKIP() << "this build has no CUDA code"; }
}  // namespace

#endif
