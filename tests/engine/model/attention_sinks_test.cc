// Attention with sinks, on every path, compared with autograd over one more score in fp64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/model/ops/attention.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

bool has_gpu() {
#ifdef SLUICE_HAS_CUDA
  return c10::cuda::device_count() > 0;
#else
  return false;
#endif
}

struct SinkCase {
  std::string name;
  at::ScalarType type = at::kDouble;
  double tolerance = 1e-12;
  at::Device device = at::kCPU;
  std::int64_t window = 0;
  bool has_documents = false;
  bool is_plain = false;  // by plain_attention(), whatever the device's kernel is
};

constexpr HeadShape kHeads = {.heads = 4, .kv_heads = 2, .head_dim = 16};
constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kTokens = 19;

// Far below, near and far above the scores.
at::Tensor sinks() { return at::tensor({-9., 0.5, 2., 9.}, at::kDouble); }

// Positions in their documents: the second one begins in the middle of a sequence.
Documents documents(at::Device device) {
  const at::Tensor here = at::arange(kTokens);
  return {.positions = at::cat({here.narrow(0, 0, 7), here.narrow(0, 0, kTokens - 7), here})
                           .view({kSequences, kTokens})
                           .to(device),
          .starts = at::tensor({0, 7, 19, 38}, at::kInt).to(device),
          .longest = kTokens,
          .padded_tokens = kTokens};
}

struct Results {
  at::Tensor output;
  at::Tensor gradient;  // packed
  at::Tensor of_sinks;
};

// Scores with a column for the sinks, which is dropped.
at::Tensor written_out(const HeadViews& heads, const at::Tensor& hidden, const at::Tensor& column) {
  const at::Tensor key = repeat_heads(heads.key, kHeads.heads);
  at::Tensor scores = at::matmul(heads.query, key.transpose(2, 3)) / 4.;
  scores = scores.masked_fill(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
  const std::int64_t rows = scores.size(2);
  const at::Tensor all =
      at::cat({scores, column.view({1, -1, 1, 1}).expand({scores.size(0), -1, rows, 1})}, -1);
  return merge_heads(at::matmul(at::softmax(all, -1).narrow(-1, 0, scores.size(3)),
                                repeat_heads(heads.value, kHeads.heads)));
}

Results expected(const at::Tensor& packed, const at::Tensor& grad, const AttentionReach& reach) {
  const at::Tensor leaf = packed.cpu().to(at::kDouble).clone().requires_grad_(true);
  const at::Tensor column = sinks().requires_grad_(true);
  const at::Tensor hidden = hidden_keys(reach, kTokens, at::kCPU);
  const at::Tensor output = written_out(HeadViews(leaf, kHeads), hidden, column);
  (output * grad.cpu().to(at::kDouble)).sum().backward();
  return {output.detach(), leaf.grad(), column.grad()};
}

Results made(const at::Tensor& packed, const at::Tensor& grad, const AttentionOptions& options,
             bool is_plain) {
  const HeadViews heads(packed, kHeads);
  const auto sums = packed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor of_sinks = at::zeros({kHeads.heads}, packed.options().dtype(sums));
  if (!is_plain) {
    const Attended attended = attention(heads, options);
    const at::Tensor gradient = attention_backward(grad, heads, attended, options, {}, of_sinks);
    return {attended.output, gradient, of_sinks};
  }
  const PlainAttentionOptions plain = {.reach = options.reach, .sinks = options.sinks};
  const at::Tensor gradient = at::zeros(packed.sizes(), packed.options());
  plain_attention_backward(split_heads(grad, kHeads.heads), heads, plain,
                           HeadViews(gradient, kHeads), of_sinks);
  return {plain_attention(heads, plain), gradient, of_sinks};
}

void expect_close(const at::Tensor& one, const at::Tensor& other, double tolerance) {
  const at::Tensor difference = one.cpu().to(at::kDouble) - other;
  EXPECT_LT((difference.norm() / other.norm()).item<double>(), tolerance);
}

void expect_sinks(const SinkCase& it) {
  SCOPED_TRACE(it.name);
  at::manual_seed(31);
  const auto options = at::TensorOptions(it.type).device(it.device);
  const at::Tensor packed = at::randn({kSequences, kTokens, kHeads.width()}).to(options);
  const at::Tensor grad = at::randn({kSequences, kTokens, kHeads.query_width()}).to(options);
  const Documents here = documents(it.device);
  const Documents on_host = documents(at::kCPU);
  const Results results =
      made(packed, grad,
           {.heads = kHeads,
            .reach = {.window = it.window, .documents = it.has_documents ? &here : nullptr},
            .sinks = sinks().to(options)},
           it.is_plain);
  const Results exact = expected(
      packed, grad, {.window = it.window, .documents = it.has_documents ? &on_host : nullptr});
  expect_close(results.output, exact.output, it.tolerance);
  expect_close(results.gradient, exact.gradient, it.tolerance);
  expect_close(results.of_sinks, exact.of_sinks, it.tolerance);
}

std::vector<SinkCase> cases(at::Device device, const std::vector<SinkCase>& types) {
  std::vector<SinkCase> all;
  for (SinkCase it : types)
    for (const std::int64_t window : {0, 5})
      for (const bool has_documents : {false, true}) {
        it.name = std::string(c10::toString(it.type)) + (it.is_plain ? " plain" : "") + " window " +
                  std::to_string(window) + (has_documents ? " documents" : "");
        it.device = device;
        it.window = window;
        it.has_documents = has_documents;
        all.push_back(it);
      }
  return all;
}

TEST(AttentionSinks, AreOneMoreScoreOfEachHead) {
  for (const SinkCase& it : cases(at::kCPU, {{.type = at::kDouble, .tolerance = 1e-12},
                                             {.type = at::kFloat, .tolerance = 1e-5},
                                             {.type = at::kBFloat16, .tolerance = 0.02},
                                             {.type = at::kDouble, .is_plain = true}}))
    expect_sinks(it);
}

TEST(ModelCudaAttentionSinks, AreOneMoreScoreOfEachHead) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device in this machine";
  for (const SinkCase& it : cases(at::kCUDA, {{.type = at::kDouble, .tolerance = 1e-12},
                                              {.type = at::kFloat, .tolerance = 1e-3},
                                              {.type = at::kBFloat16, .tolerance = 0.02}}))
    expect_sinks(it);
}

// The queries of the last positions, one or several, with a window and without.
void expect_last(at::ScalarType type, at::Device device, double tolerance) {
  at::manual_seed(32);
  const auto options = at::TensorOptions(type).device(device);
  const HeadViews heads(at::randn({kSequences, kTokens, kHeads.width()}).to(options), kHeads);
  const HeadViews exact(heads.query.cpu().to(at::kDouble), heads.key.cpu().to(at::kDouble),
                        heads.value.cpu().to(at::kDouble));
  for (const std::int64_t window : {0, 5}) {
    const at::Tensor whole =
        written_out(exact, hidden_keys({.window = window}, kTokens, at::kCPU), sinks());
    for (const std::int64_t count : {1, 3}) {
      const at::Tensor last =
          attend_last({heads.query.narrow(2, kTokens - count, count), heads.key, heads.value},
                      {.heads = kHeads, .reach = {.window = window}, .sinks = sinks().to(options)});
      expect_close(last, whole.narrow(1, kTokens - count, count), tolerance);
    }
  }
}

TEST(AttentionSinks, HoldForTheLastPositions) {
  expect_last(at::kDouble, at::kCPU, 1e-12);
  expect_last(at::kFloat, at::kCPU, 1e-5);
  expect_last(at::kBFloat16, at::kCPU, 0.02);
}

TEST(ModelCudaAttentionSinks, HoldForTheLastPositions) {
  if (!has_gpu()) GTEST_SKIP() << "no CUDA device in this machine";
  expect_last(at::kFloat, at::kCUDA, 1e-3);
  expect_last(at::kBFloat16, at::kCUDA, 0.02);
}

// Dropout needs plain attention: the sinks are not dropped.
TEST(AttentionSinks, AreTheSameWithDropout) {
  at::manual_seed(33);
  const at::Tensor packed = at::randn({1, kTokens, kHeads.width()}, at::kDouble);
  const HeadViews heads(packed, kHeads);
  AttentionOptions options = {
      .heads = kHeads, .dropout = {.probability = 0.3, .seed = 5}, .sinks = sinks()};
  const at::Tensor grad = at::randn({1, kTokens, kHeads.query_width()}, at::kDouble);
  const at::Tensor gradient = at::zeros({kHeads.heads}, at::kDouble);
  attention_backward(grad, heads, attention(heads, options), options, {}, gradient);
  const auto loss = [&] { return (attention(heads, options).output * grad).sum().item<double>(); };
  for (std::int64_t head = 0; head < kHeads.heads; ++head) {
    constexpr double kStep = 1e-6;
    options.sinks[head].add_(kStep);
    const double above = loss();
    options.sinks[head].sub_(2 * kStep);
    const double below = loss();
    options.sinks[head].add_(kStep);
    EXPECT_NEAR(gradient[head].item<double>(), (above - below) / (2 * kStep), 1e-6);
  }
}

}  // namespace
}  // namespace sluice::engine
