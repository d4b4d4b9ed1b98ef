// The gated delta rule, its convolution and its gates, compared with token by token recurrences and
// autograd in fp64.
#include "engine/model/ops/gated_delta_rule.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/model/ops/causal_conv.h"
#include "engine/model/ops/gated_norm.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

at::Tensor leaf(const at::Tensor& of) {
  return of.detach().cpu().to(at::kDouble).clone().requires_grad_(true);
}

double distance(const at::Tensor& made, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().cpu().to(at::kDouble);
  const at::Tensor difference = made.detach().cpu().to(at::kDouble) - exact;
  return (difference.norm() / exact.norm().clamp_min(1e-30)).item<double>();
}

// Rows with the same documents, of these lengths.
Documents documents_of(const std::vector<std::int64_t>& lengths, std::int64_t rows,
                       at::Device device = at::kCPU) {
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const std::int64_t length : lengths)
      for (std::int64_t i = 0; i < length; ++i) positions.push_back(i);
  return {.positions = at::tensor(positions).view({rows, -1}).to(device)};
}

struct RuleCase {
  DeltaHeads heads;
  std::int64_t rows = 1;
  std::int64_t tokens = 1;
  double decay = 1;  // how strong it is
  bool same_keys = false;
};

const RuleCase kCases[] = {
    {.heads = {1, 1, 4, 4}, .rows = 1, .tokens = 1},
    {.heads = {2, 2, 3, 5}, .rows = 2, .tokens = 7},
    {.heads = {2, 4, 8, 6}, .rows = 2, .tokens = 64},
    {.heads = {1, 3, 16, 8}, .rows = 1, .tokens = 65},
    {.heads = {3, 6, 8, 16}, .rows = 2, .tokens = 200},
    {.heads = {1, 2, 8, 8}, .rows = 1, .tokens = 130, .decay = 60},
    {.heads = {1, 2, 8, 8}, .rows = 1, .tokens = 150, .decay = 0, .same_keys = true},
};

struct RuleNumbers {
  RuleNumbers(const RuleCase& which, const at::TensorOptions& options) {
    at::manual_seed(3);
    const auto& [heads, rows, tokens, strength, same_keys] = which;
    const auto numbers = [&](std::int64_t width) {
      return at::randn({rows, tokens, width}, at::kDouble);
    };
    const auto wide = options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    qkv = numbers(heads.qkv_width());
    at::Tensor keys = qkv.narrow(-1, heads.key_width(), heads.key_width());
    if (same_keys) keys.copy_(keys.narrow(1, 0, 1).clone().expand(keys.sizes()));
    qkv = qkv.to(options);
    decay = numbers(heads.value_heads).abs_().mul_(-strength).to(wide);
    rate = (same_keys ? at::zeros_like(decay).add_(1) : at::sigmoid(numbers(heads.value_heads)))
               .to(wide);
    gradient = numbers(heads.value_width()).to(options);
  }
  DeltaInputs inputs() const { return {.qkv = qkv, .decay = decay, .rate = rate}; }
  at::Tensor qkv;
  at::Tensor decay;
  at::Tensor rate;
  at::Tensor gradient;
};

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / (rows.square().sum(-1, /*keepdim=*/true) + 1e-6).sqrt();
}

// Token by token, as the header says. `positions`: 0 begins with a state of zeros.
at::Tensor recurrence(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& rate,
                      const DeltaHeads& heads, const at::Tensor& positions = {}) {
  const std::int64_t rows = qkv.size(0);
  const auto keys = [&](std::int64_t from) {
    return unit_rows(qkv.narrow(-1, from, heads.key_width())
                         .view({rows, -1, heads.key_heads, heads.key_dim}))
        .repeat_interleave(heads.groups(), 2);
  };
  const at::Tensor query = keys(0) / std::sqrt(static_cast<double>(heads.key_dim));
  const at::Tensor key = keys(heads.key_width());
  const at::Tensor value = qkv.narrow(-1, 2 * heads.key_width(), heads.value_width())
                               .view({rows, -1, heads.value_heads, heads.value_dim});
  at::Tensor state =
      at::zeros({rows, heads.value_heads, heads.key_dim, heads.value_dim}, at::kDouble);
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < qkv.size(1); ++t) {
    if (positions.defined())
      state = state * positions.select(1, t).ne(0).to(at::kDouble).view({rows, 1, 1, 1});
    state = state * decay.select(1, t).exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor k = key.select(1, t).unsqueeze(-1);
    const at::Tensor known = at::matmul(k.mT(), state);
    const at::Tensor error = value.select(1, t).unsqueeze(-2) - known;
    state = state + at::matmul(k, error * rate.select(1, t).unsqueeze(-1).unsqueeze(-1));
    outputs.push_back(at::matmul(query.select(1, t).unsqueeze(-2), state).squeeze(-2));
  }
  return at::stack(outputs, 1).flatten(2);
}

// Bounds for the output and the gradients of qkv; those of decays and rates cancel more.
void expect_as_recurrence(const RuleCase& which, const at::TensorOptions& options,
                          const Documents* documents, double bound) {
  SCOPED_TRACE(which.tokens);
  const RuleNumbers numbers(which, options);
  const at::Tensor qkv = leaf(numbers.qkv);
  const at::Tensor decay = leaf(numbers.decay);
  const at::Tensor rate = leaf(numbers.rate);
  const at::Tensor expected =
      recurrence(qkv, decay, rate, which.heads,
                 documents == nullptr ? at::Tensor() : documents->positions.cpu());
  (expected * numbers.gradient.cpu().to(at::kDouble)).sum().backward();
  EXPECT_LT(distance(gated_delta_rule(numbers.inputs(), which.heads, documents), expected), bound);
  const DeltaGradients made =
      gated_delta_rule_backward(numbers.gradient, numbers.inputs(), which.heads, documents);
  EXPECT_LT(distance(made.qkv, qkv.grad()), 3 * bound);
  EXPECT_LT(distance(made.rate, rate.grad()), 3 * bound);
  EXPECT_LT((made.decay.cpu().to(at::kDouble) - decay.grad()).norm().item<double>(),
            10 * bound * (decay.grad().norm().item<double>() + 1));
}

TEST(GatedDeltaRule, IsTheRecurrenceWithItsGradients) {
  for (const RuleCase& which : kCases) {
    expect_as_recurrence(which, at::kDouble, nullptr, 1e-12);
    expect_as_recurrence(which, at::kFloat, nullptr, 1e-5);
    expect_as_recurrence(which, at::kBFloat16, nullptr, 1e-2);
  }
}

TEST(GatedDeltaRule, BeginsEachDocumentWithoutAState) {
  const RuleCase which = {.heads = {2, 4, 8, 6}, .rows = 2, .tokens = 200};
  for (const auto& lengths :
       {std::vector<std::int64_t>{200}, {64, 64, 72}, {1, 1, 62, 1, 135}, {70, 3, 3, 124}}) {
    const Documents documents = documents_of(lengths, 2);
    expect_as_recurrence(which, at::kDouble, &documents, 1e-12);
  }
}

TEST(GatedDeltaRule, LetsNothingPassBetweenDocuments) {
  const RuleCase which = {.heads = {1, 2, 8, 8}, .rows = 1, .tokens = 100};
  const Documents documents = documents_of({30, 70}, 1);
  RuleNumbers numbers(which, at::kFloat);
  const at::Tensor before = gated_delta_rule(numbers.inputs(), which.heads, &documents);
  numbers.qkv.narrow(1, 0, 30).mul_(-1e6);
  numbers.decay.narrow(1, 0, 30).mul_(1e6);
  const at::Tensor after = gated_delta_rule(numbers.inputs(), which.heads, &documents);
  EXPECT_LT(distance(after.narrow(1, 30, 70), before.narrow(1, 30, 70)), 1e-6);
}

TEST(GatedDeltaRule, ContinuesFromAState) {
  for (const RuleCase& which : kCases) {
    const RuleNumbers numbers(which, at::kDouble);
    const at::Tensor whole = gated_delta_rule(numbers.inputs(), which.heads, nullptr);
    for (const std::int64_t step : {1, 5, 70}) {
      const at::Tensor state = at::zeros(
          {which.rows, which.heads.value_heads, which.heads.key_dim, which.heads.value_dim},
          at::kDouble);
      for (std::int64_t first = 0; first < which.tokens; first += step) {
        const std::int64_t count = std::min(step, which.tokens - first);
        const at::Tensor qkv = numbers.qkv.narrow(1, first, count);
        const at::Tensor decay = numbers.decay.narrow(1, first, count);
        const at::Tensor rate = numbers.rate.narrow(1, first, count);
        const at::Tensor made =
            gated_delta_rule_after(state, {.qkv = qkv, .decay = decay, .rate = rate}, which.heads);
        EXPECT_LT(distance(made, whole.narrow(1, first, count)), 1e-11);
      }
    }
  }
}

TEST(GatedDeltaRule, ComputesABoundedNumberOfHeadsAtATime) {
  const DeltaHeads heads = {4, 8, 128, 128};
  EXPECT_EQ(delta_part_heads(heads, 1 << 15), 2);
  EXPECT_EQ(delta_part_heads(heads, 1 << 20), 1);
  EXPECT_EQ(delta_part_heads(heads, 64), 4);
}

TEST(DeltaDecay, HasItsGradients) {
  at::manual_seed(5);
  const at::Tensor a = leaf(at::randn({2, 9, 3}, at::kDouble) * 4);
  const at::Tensor log_rate = leaf(at::randn({3}, at::kDouble));
  const at::Tensor bias = leaf(at::randn({3}, at::kDouble));
  const at::Tensor gradient = at::randn({2, 9, 3}, at::kDouble);
  const at::Tensor expected = -log_rate.exp() * at::softplus(a + bias);
  (expected * gradient).sum().backward();
  const at::Tensor values[] = {a.detach(), log_rate.detach(), bias.detach()};
  const at::Tensor before = values[1].clone();
  const at::Tensor made = delta_decay(values[0], {values[1], values[2]});
  EXPECT_LT(distance(made, expected), 1e-14);
  const at::Tensor sums[] = {at::zeros({3}, at::kDouble), at::zeros({3}, at::kDouble)};
  const at::Tensor of_a =
      delta_decay_backward(gradient, made, values[0], {values[1], values[2]}, {sums[0], sums[1]});
  EXPECT_LT(distance(of_a, a.grad()), 1e-7);  // the slope of softplus above 20 is 1 in ATen
  EXPECT_LT(distance(sums[0], log_rate.grad()), 1e-14);
  EXPECT_LT(distance(sums[1], bias.grad()), 1e-7);
  EXPECT_TRUE(values[1].equal(before));
}

// ---- convolution

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& positions = {}) {
  const std::int64_t taps = weight.size(2);
  std::vector<at::Tensor> outputs;
  for (std::int64_t t = 0; t < input.size(1); ++t) {
    at::Tensor sum = at::zeros({input.size(0), input.size(2)}, at::kDouble);
    for (std::int64_t d = 0; d < std::min(taps, t + 1); ++d) {
      at::Tensor term = input.select(1, t - d) * weight.select(2, taps - 1 - d).squeeze(-1);
      if (positions.defined()) term = term * positions.select(1, t).ge(d).unsqueeze(-1);
      sum = sum + term;
    }
    outputs.push_back(at::silu(sum));
  }
  return at::stack(outputs, 1);
}

void expect_as_convolution(const at::TensorOptions& options, std::int64_t tokens,
                           const Documents* documents, double bound) {
  at::manual_seed(9);
  const at::Tensor input = at::randn({2, tokens, 13}, at::kDouble).to(options);
  const at::Tensor weight = at::randn({13, 1, 4}, at::kDouble).to(options);
  const at::Tensor gradient = at::randn({2, tokens, 13}, at::kDouble).to(options);
  const at::Tensor x = leaf(input);
  const at::Tensor w = leaf(weight);
  const at::Tensor expected =
      convolution(x, w.unsqueeze(1).squeeze(1),
                  documents == nullptr ? at::Tensor() : documents->positions.cpu());
  (expected * gradient.cpu().to(at::kDouble)).sum().backward();
  EXPECT_LT(distance(causal_conv_silu(input, weight, documents), expected), bound);
  const at::Tensor grad_input = at::empty(input.sizes(), input.options());
  const bool is_double = options.dtype() == at::kDouble;
  const at::Tensor sums =
      at::zeros(weight.sizes(), options.dtype(is_double ? at::kDouble : at::kFloat)).add_(1);
  causal_conv_silu_backward(gradient, input, weight, documents, grad_input, sums);
  EXPECT_LT(distance(grad_input, x.grad()), bound);
  EXPECT_LT(distance(sums - 1, w.grad()), bound);
}

TEST(CausalConv, IsASumOverTheLastTokensWithItsGradients) {
  for (const std::int64_t tokens : {1, 2, 3, 4, 30}) {
    expect_as_convolution(at::kDouble, tokens, nullptr, 1e-14);
    expect_as_convolution(at::kFloat, tokens, nullptr, 1e-6);
    expect_as_convolution(at::kBFloat16, tokens, nullptr, 1e-2);
  }
  for (const auto& lengths : {std::vector<std::int64_t>{30}, {1, 1, 1, 27}, {2, 5, 3, 20}}) {
    const Documents documents = documents_of(lengths, 2);
    expect_as_convolution(at::kDouble, 30, &documents, 1e-14);
  }
}

TEST(CausalConv, DoesNotReadOtherDocuments) {
  const Documents documents = documents_of({3, 5}, 1);
  const at::Tensor input = at::ones({1, 8, 2});
  input.narrow(1, 0, 3).fill_(std::nan(""));
  const at::Tensor weight = at::ones({2, 1, 4});
  EXPECT_FALSE(
      causal_conv_silu(input, weight, &documents).narrow(1, 3, 5).isnan().any().item<bool>());
}

// ---- gates

TEST(GatedNorm, HasItsGradients) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::manual_seed(11);
    const double bound = dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-6 : 1.5e-2;
    const at::Tensor input = at::randn({2, 5, 12}, at::kDouble).to(dtype);
    const at::Tensor gate = at::randn({2, 5, 12}, at::kDouble).to(dtype);
    const at::Tensor weight = at::randn({4}, at::kDouble).to(dtype);
    const at::Tensor gradient = at::randn({2, 5, 12}, at::kDouble).to(dtype);
    const at::Tensor x = leaf(input);
    const at::Tensor z = leaf(gate);
    const at::Tensor w = leaf(weight);
    const at::Tensor rows = x.view({2, 5, 3, 4});
    const at::Tensor expected =
        (rows / (at::mean(rows.square(), {-1}, /*keepdim=*/true) + 1e-6).sqrt() * w).flatten(2) *
        at::silu(z);
    (expected * gradient.to(at::kDouble)).sum().backward();
    EXPECT_LT(distance(gated_rms_norm(input, gate, weight, 1e-6), expected), bound);
    const at::Tensor grad_gate = at::empty(gate.sizes(), gate.options());
    const at::Tensor sums = at::zeros({4}, dtype == at::kDouble ? at::kDouble : at::kFloat).add_(1);
    gated_rms_norm_backward(gradient, input, gate, weight, 1e-6, grad_gate, sums);
    EXPECT_LT(distance(gradient, x.grad()), bound);
    EXPECT_LT(distance(grad_gate, z.grad()), bound);
    EXPECT_LT(distance(sums - 1, w.grad()), bound);
  }
}

TEST(SigmoidGate, HasItsGradients) {
  at::manual_seed(13);
  const at::Tensor input = at::randn({2, 5, 12}, at::kDouble);
  const at::Tensor gate = at::randn({2, 5, 12}, at::kDouble);
  const at::Tensor gradient = at::randn({2, 5, 12}, at::kDouble);
  const at::Tensor x = leaf(input);
  const at::Tensor z = leaf(gate);
  const at::Tensor expected = x * at::sigmoid(z);
  (expected * gradient).sum().backward();
  EXPECT_LT(distance(sigmoid_gated(input, gate), expected), 1e-14);
  sigmoid_gated_backward(gradient, input, gate);
  EXPECT_LT(distance(gradient, x.grad()), 1e-14);
  EXPECT_LT(distance(gate, z.grad()), 1e-14);
}

#ifdef SLUICE_HAS_CUDA

class ModelCudaDeltaRule : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  }
};

TEST_F(ModelCudaDeltaRule, IsTheRecurrenceWithItsGradients) {
  for (const RuleCase& which : kCases) {
    const Documents whole = documents_of({which.tokens}, which.rows, at::kCUDA);
    for (const Documents* const documents : {static_cast<const Documents*>(nullptr), &whole}) {
      expect_as_recurrence(which, at::TensorOptions(at::kFloat).device(at::kCUDA), documents, 2e-5);
      expect_as_recurrence(which, at::TensorOptions(at::kBFloat16).device(at::kCUDA), documents,
                           1e-2);
    }
  }
  // Sizes that the kernels of chunks have, with whole chunks and not, and with documents.
  for (const RuleCase& which :
       {RuleCase{.heads = {2, 4, 64, 64}, .rows = 2, .tokens = 200},
        RuleCase{.heads = {1, 2, 128, 32}, .rows = 1, .tokens = 128},
        RuleCase{.heads = {1, 3, 128, 128}, .rows = 1, .tokens = 150},
        RuleCase{.heads = {2, 2, 64, 16}, .rows = 1, .tokens = 130, .decay = 60},
        RuleCase{.heads = {1, 2, 128, 64}, .rows = 1, .tokens = 150, .decay = 0, .same_keys = true},
        RuleCase{.heads = {1, 1, 128, 18}, .rows = 3, .tokens = 65}}) {
    const Documents cut = documents_of({64, 1, which.tokens - 65}, which.rows, at::kCUDA);
    for (const Documents* const documents : {static_cast<const Documents*>(nullptr), &cut}) {
      expect_as_recurrence(which, at::TensorOptions(at::kFloat).device(at::kCUDA), documents, 2e-5);
      for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf})
        expect_as_recurrence(which, at::TensorOptions(narrow).device(at::kCUDA), documents, 1e-2);
    }
  }
  const Documents documents = documents_of({2, 5, 3, 20}, 2, at::kCUDA);
  for (const Documents* const some : {static_cast<const Documents*>(nullptr), &documents})
    expect_as_convolution(at::TensorOptions(at::kFloat).device(at::kCUDA), 30, some, 1e-6);
}

TEST_F(ModelCudaDeltaRule, HasTheSameBitsAgain) {
  const RuleCase which = {.heads = {16, 32, 128, 128}, .rows = 2, .tokens = 1000};
  const RuleNumbers numbers(which, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  const auto run = [&] {
    return gated_delta_rule_backward(numbers.gradient, numbers.inputs(), which.heads, nullptr);
  };
  const DeltaGradients first = run();
  const DeltaGradients second = run();
  EXPECT_TRUE(first.qkv.equal(second.qkv));
  EXPECT_TRUE(first.decay.equal(second.decay));
  EXPECT_TRUE(first.rate.equal(second.rate));
}

#endif

}  // namespace
}  // namespace sluice::engine
