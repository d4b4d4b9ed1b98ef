// Compares each fused kernel with ATen's operators in float64 on the CPU, on the same 16-bit
// inputs; and its bits between two calls. Skipped without a GPU.
#include <gtest/gtest.h>

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAFunctions.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/ops/activate.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/output_loss.h"
#include "engine/model/ops/rms_norm.h"
#include "tests/engine/model/rounding_error.h"

namespace sluice::engine {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr Activation kActivations[] = {Activation::kGeluTanh, Activation::kGelu, Activation::kRelu,
                                       Activation::kSilu};

struct Case {
  at::ScalarType dtype;
  std::int64_t rows;
  std::int64_t columns;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(c10::toString(info.param.dtype)) + "Rows" + std::to_string(info.param.rows) +
         "Columns" + std::to_string(info.param.columns);
}

class FusedKernelsCuda : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
    at::manual_seed(11);
  }

  // Random numbers that the dtype represents exactly.
  at::Tensor rows() const { return numbers({GetParam().rows, GetParam().columns}); }
  at::Tensor vector() const { return numbers({GetParam().columns}); }
  static at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes).to(GetParam().dtype); }
  static at::Tensor sums(std::int64_t columns) {
    return at::randn({columns}, at::TensorOptions().dtype(at::kFloat));
  }
  double rounding() const { return GetParam().dtype == at::kHalf ? 1e-3 : 5e-3; }
  static constexpr double kSumRounding = 2e-6;

  // Calls twice, compares the bits of all results, and returns the first ones.
  static std::vector<at::Tensor> twice(const std::function<std::vector<at::Tensor>()>& call) {
    std::vector<at::Tensor> first = call();
    const std::vector<at::Tensor> second = call();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
    return first;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // A row in one warp and in several, with and without idle threads, up to the widest; numbers of
    // rows that do and do not fill a block's share.
    for (const std::int64_t columns : {24, 768, 1600, 2568, 4608}) {
      for (const std::int64_t rows : {1, 67, 530}) all.push_back({dtype, rows, columns});
    }
    all.push_back({dtype, 3100, 1600});
    all.push_back({dtype, 19, 16384});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, FusedKernelsCuda, testing::ValuesIn(cases()), name_of);

TEST_P(FusedKernelsCuda, NormBehindAResidualMatchesFloat64) {
  const at::Tensor branch = rows();
  const at::Tensor residual = rows();
  const at::Tensor weight = vector();
  const at::Tensor bias = vector();
  const Dropout dropout = {.probability = 0.1, .seed = 5};
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor sum = branch.cuda();
    const FusedNorm norm =
        fused_add_and_norm(sum, residual.cuda(), dropout, {weight.cuda(), bias.cuda(), kEpsilon});
    return std::vector<at::Tensor>{sum, norm.output, norm.mean, norm.rstd};
  });
  const at::Tensor expected_sum =
      with_dropout(branch.to(at::kDouble), dropout) + residual.to(at::kDouble);
  EXPECT_LT(error(ours[0], expected_sum), rounding());
  // The norm uses the sum as it was stored.
  const at::Tensor stored = ours[0].cpu().to(at::kDouble);
  const auto [output, mean, rstd] = at::native_layer_norm(
      stored, {stored.size(1)}, weight.to(at::kDouble), bias.to(at::kDouble), kEpsilon);
  EXPECT_LT(error(ours[1], output), rounding());
  EXPECT_LT((ours[2].cpu().to(at::kDouble) - mean).abs().max().item<double>(), 1e-6);
  EXPECT_LT(error(ours[3], rstd), 1e-5);
}

TEST_P(FusedKernelsCuda, NormAloneIsTheNormBehindAResidualOfZero) {
  const at::Tensor input = rows().cuda();
  const at::Tensor weight = vector().cuda();
  const at::Tensor bias = vector().cuda();
  at::Tensor sum = input.clone();
  const FusedNorm alone = fused_norm(input, {weight, bias, kEpsilon});
  const FusedNorm behind =
      fused_add_and_norm(sum, at::zeros_like(input), {}, {weight, bias, kEpsilon});
  EXPECT_TRUE(sum.equal(input));
  EXPECT_TRUE(alone.output.equal(behind.output));
  EXPECT_TRUE(alone.mean.equal(behind.mean));
  EXPECT_TRUE(alone.rstd.equal(behind.rstd));
}

TEST_P(FusedKernelsCuda, NormBackwardMatchesFloat64) {
  const at::Tensor gradient = rows();
  const at::Tensor input = rows();
  const at::Tensor residual = rows();
  const at::Tensor weight = vector();
  const at::Tensor before = sums(GetParam().columns);
  const FusedNorm norm = fused_norm(input.cuda(), {weight.cuda(), weight.cuda(), kEpsilon});
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor grad = gradient.cuda();
    const at::Tensor of_weight = before.cuda();
    const at::Tensor of_bias = before.cuda();
    fused_norm_backward(grad, {input.cuda(), norm.mean, norm.rstd, weight.cuda(), residual.cuda()},
                        {of_weight, of_bias});
    return std::vector<at::Tensor>{grad, of_weight, of_bias};
  });
  const at::Tensor x = input.to(at::kDouble);
  const at::Tensor w = weight.to(at::kDouble);
  const auto [output, mean, rstd] = at::native_layer_norm(x, {x.size(1)}, w, w, kEpsilon);
  const auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
      gradient.to(at::kDouble), x, {x.size(1)}, mean, rstd, w, w, {true, true, true});
  EXPECT_LT(error(ours[0], grad_input + residual.to(at::kDouble)), rounding());
  EXPECT_LT(error(ours[1], grad_weight + before), kSumRounding);
  EXPECT_LT(error(ours[2], grad_bias + before), kSumRounding);
}

// With a weight in the dtype of the rows, and with one in fp32.
TEST_P(FusedKernelsCuda, RmsNormBehindAResidualAndItsGradientMatchFloat64) {
  for (const bool is_wide : {false, true}) {
    SCOPED_TRACE(is_wide);
    const at::Tensor branch = rows();
    const at::Tensor residual = rows();
    const at::Tensor weight = is_wide ? sums(GetParam().columns) : vector();
    const at::Tensor gradient = rows();
    const at::Tensor before = sums(GetParam().columns);
    const std::vector<at::Tensor> ours = twice([&] {
      at::Tensor sum = branch.cuda();
      const RmsNormed normed = add_and_rms_norm(sum, residual.cuda(), {}, weight.cuda(), kEpsilon);
      const at::Tensor of_weight = before.cuda();
      const at::Tensor grad = rms_norm_backward(gradient.cuda(), sum, normed.rstd, weight.cuda(),
                                                of_weight, residual.cuda());
      return std::vector<at::Tensor>{sum, normed.output, grad, of_weight};
    });
    EXPECT_LT(error(ours[0], branch.to(at::kDouble) + residual.to(at::kDouble)), rounding());
    const at::Tensor stored = ours[0].cpu().to(at::kDouble);
    const at::Tensor w = weight.to(at::kDouble);
    const RmsNormed expected = rms_norm(stored, w, kEpsilon);
    EXPECT_LT(error(ours[1], expected.output), rounding());
    at::Tensor of_weight = before.to(at::kDouble);
    const at::Tensor grad = rms_norm_backward(gradient.to(at::kDouble), stored, expected.rstd, w,
                                              of_weight, residual.to(at::kDouble));
    EXPECT_LT(error(ours[2], grad), rounding());
    EXPECT_LT(error(ours[3], of_weight), kSumRounding);
  }
}

TEST_P(FusedKernelsCuda, GatesAndTheirGradientsMatchFloat64) {
  // Values far into both tails, and zeros.
  const at::Tensor both =
      (numbers({GetParam().rows, 2 * GetParam().columns}).to(at::kFloat) * 6).to(GetParam().dtype);
  both.narrow(1, 0, 1).zero_();
  both.narrow(1, 1, 1).fill_(-60000);
  both.narrow(1, GetParam().columns, 3).zero_();
  const at::Tensor gradient = rows();
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(static_cast<int>(activation));
    const std::vector<at::Tensor> ours = twice([&] {
      at::Tensor gate_and_up = both.cuda();
      at::Tensor grad = gradient.cuda();
      const at::Tensor product = gated(gate_and_up, activation);
      gated_backward(gate_and_up, grad, activation);
      return std::vector<at::Tensor>{product, gate_and_up, grad};
    });
    at::Tensor gate_and_up = both.to(at::kDouble);
    at::Tensor grad = gradient.to(at::kDouble);
    const at::Tensor product = gated(gate_and_up, activation);
    gated_backward(gate_and_up, grad, activation);
    EXPECT_LT(error(ours[0], product), rounding());
    EXPECT_LT(error(ours[1], gate_and_up), rounding());
    EXPECT_TRUE(ours[2].equal(ours[0]));  // the product again
    EXPECT_TRUE(ours[1].isfinite().all().item<bool>());
  }
}

TEST_P(FusedKernelsCuda, ClampedGatesMatchFloat64) {
  const ClampedGate rule = {.alpha = 1.702, .limit = 1};
  const at::Tensor both =
      (numbers({GetParam().rows, 2 * GetParam().columns}).to(at::kFloat) * 4).to(GetParam().dtype);
  const at::Tensor gradient = rows();
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor gate_and_up = both.cuda();
    at::Tensor grad = gradient.cuda();
    const at::Tensor product = clamped_gated(gate_and_up, rule);
    clamped_gated_backward(gate_and_up, grad, rule);
    return std::vector<at::Tensor>{product, gate_and_up, grad};
  });
  at::Tensor gate_and_up = both.to(at::kDouble);
  at::Tensor grad = gradient.to(at::kDouble);
  const at::Tensor product = clamped_gated(gate_and_up, rule);
  clamped_gated_backward(gate_and_up, grad, rule);
  EXPECT_LT(error(ours[0], product), rounding());
  EXPECT_LT(error(ours[1], gate_and_up), rounding());
  EXPECT_TRUE(ours[2].equal(ours[0]));  // the product again
}

// Computed by ATen on the CPU in float64: the function of x, and its gradient.
std::array<at::Tensor, 2> expected_activation(const at::Tensor& x, const at::Tensor& gradient,
                                              Activation activation) {
  at::Tensor value = x.to(at::kDouble);
  at::Tensor slope = gradient.to(at::kDouble);
  activate_backward(value, slope, activation, {});
  EXPECT_TRUE(activate(x.to(at::kDouble), activation).equal(value));
  return {value, slope};
}

TEST_P(FusedKernelsCuda, ActivationsAndTheirGradientsMatchFloat64) {
  // Values far into both tails.
  const at::Tensor input = (rows().to(at::kFloat) * 4).to(GetParam().dtype);
  const at::Tensor gradient = rows();
  const at::Tensor before = sums(GetParam().columns);
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(static_cast<int>(activation));
    const std::vector<at::Tensor> ours = twice([&] {
      at::Tensor value = input.cuda();
      at::Tensor grad = gradient.cuda();
      const at::Tensor of_bias = before.cuda();
      fused_activation_backward(value, grad, activation, of_bias);
      return std::vector<at::Tensor>{value, grad, of_bias,
                                     fused_activation(input.cuda(), activation)};
    });
    const auto [value, slope] = expected_activation(input, gradient, activation);
    EXPECT_LT(error(ours[0], value), rounding());
    EXPECT_LT(error(ours[1], slope), rounding());
    EXPECT_LT(error(ours[2], slope.sum(0) + before), 10 * kSumRounding);
    EXPECT_TRUE(ours[3].equal(ours[0]));
  }
}

TEST_P(FusedKernelsCuda, ActivationsKeepTheirTailsAndWhatIsNoNumber) {
  const std::vector<float> far = {-60000, -100, -20, 0, 20, 100, 60000, -5};
  const at::Tensor input = at::tensor(at::ArrayRef<float>(far)).to(GetParam().dtype).unsqueeze(0);
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(static_cast<int>(activation));
    at::Tensor x = input.cuda();
    at::Tensor slope = at::ones_like(x);
    const at::Tensor sums = at::zeros({8}, x.options().dtype(at::kFloat));
    fused_activation_backward(x, slope, activation, sums);
    const auto [value, expected] = expected_activation(input, at::ones_like(input), activation);
    EXPECT_TRUE(slope.cpu().to(at::kDouble).allclose(expected, rounding(), 1e-4)) << slope;
    EXPECT_TRUE(x.cpu().to(at::kDouble).allclose(value, rounding(), 1e-4)) << x;
    const at::Tensor none = at::full_like(x, std::nan(""));
    EXPECT_TRUE(fused_activation(none, activation).isnan().all().item<bool>());
    at::Tensor after = none.clone();
    fused_activation_backward(after, slope, activation, sums);
    EXPECT_TRUE(after.isnan().all().item<bool>());
  }
}

TEST_P(FusedKernelsCuda, ResidualIsAddedBehindTheMaskOfDropout) {
  const at::Tensor branch = rows();
  const at::Tensor residual = rows();
  for (const double probability : {0.0, 0.1}) {
    const Dropout dropout = {.probability = probability, .seed = 9};
    at::Tensor sum = branch.cuda();
    fused_add_residual(sum, residual.cuda(), dropout);
    const at::Tensor expected =
        with_dropout(branch.to(at::kDouble), dropout) + residual.to(at::kDouble);
    EXPECT_LT(error(sum, expected), rounding()) << probability;
  }
}

TEST_P(FusedKernelsCuda, DropoutHasTheBitsOfTheCpuAndItsColumnsAreSummed) {
  const at::Tensor gradient = rows();
  const at::Tensor before = sums(GetParam().columns);
  for (const double probability : {0.0, 0.25}) {
    const Dropout dropout = {.probability = probability, .seed = 21};
    const std::vector<at::Tensor> ours = twice([&] {
      const at::Tensor of_bias = before.cuda();
      return std::vector<at::Tensor>{fused_dropout_and_sum(gradient.cuda(), dropout, of_bias),
                                     of_bias};
    });
    EXPECT_TRUE(ours[0].cpu().equal(with_dropout(gradient, dropout))) << probability;
    const at::Tensor expected = with_dropout(gradient.to(at::kDouble), dropout).sum(0) + before;
    EXPECT_LT(error(ours[1], expected), kSumRounding) << probability;
  }
}

TEST_P(FusedKernelsCuda, GatherPutsThreePartsSideBySideAndSumsThem) {
  for (const std::int64_t share : {1, 3}) {  // how much wider the first is
    const at::Tensor parts[] = {numbers({GetParam().rows, share * GetParam().columns}), rows(),
                                rows()};
    const at::Tensor before = sums((share + 2) * GetParam().columns);
    const std::vector<at::Tensor> ours = twice([&] {
      at::Tensor gathered = at::cat({parts[0], parts[1], parts[1]}, 1).cuda();
      const at::Tensor of_bias = before.cuda();
      fused_gather({parts[0].cuda(), parts[1].cuda(), parts[2].cuda()}, gathered, of_bias);
      return std::vector<at::Tensor>{gathered, of_bias};
    });
    const at::Tensor expected = at::cat({parts[0], parts[1], parts[2]}, 1);
    EXPECT_TRUE(ours[0].cpu().equal(expected)) << share;
    EXPECT_LT(error(ours[1], expected.to(at::kDouble).sum(0) + before), kSumRounding) << share;
  }
}

// Logits whose rows are whole packs, unlike ModelCuda's; the vocabulary ends inside one.
TEST_P(FusedKernelsCuda, PackedCrossEntropyMatchesTheCpu) {
  const std::int64_t vocab = GetParam().columns - 3;
  const at::Tensor logits = (rows().to(at::kFloat) * 4).to(GetParam().dtype);
  const at::Tensor targets = at::randint(vocab, {GetParam().rows}, at::kLong);
  const CrossEntropyOptions options = {.vocab = vocab, .grad_scale = 3};
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor device = logits.cuda();
    const at::Tensor losses = cross_entropy_in_place(device, targets.cuda(), options);
    return std::vector<at::Tensor>{losses, device};
  });
  at::Tensor gradient = logits.to(at::kDouble);
  const at::Tensor losses = cross_entropy_in_place(gradient, targets, options);
  EXPECT_LT(error(ours[0], losses), 1e-5);
  EXPECT_LT(error(ours[1], gradient), rounding());
}

TEST(FusedKernelsCudaFits, ServeSixteenBitRowsOfWholePacksOnly) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  const at::Tensor rows = at::zeros({4, 64}, at::TensorOptions().dtype(at::kHalf)).cuda();
  EXPECT_TRUE(cuda_fuses(rows));
  EXPECT_FALSE(cuda_fuses(rows.cpu()));
  EXPECT_FALSE(cuda_fuses(rows.to(at::kFloat)));
  EXPECT_FALSE(cuda_fuses(rows.narrow(1, 0, 32)));               // not contiguous
  EXPECT_FALSE(cuda_fuses(rows.narrow(1, 0, 36).contiguous()));  // half a pack
  EXPECT_FALSE(cuda_fuses(rows.flatten().narrow(0, 4, 64)));     // not aligned
}

}  // namespace
}  // namespace sluice::engine

#else

namespace {
TEST(FusedKernelsCuda, MatchFloat64) { GTEST_SKIP() << "this build has no CUDA code"; }
}  // namespace

#endif
