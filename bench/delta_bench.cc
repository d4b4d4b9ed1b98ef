// delta_bench: times the parts of a block with a gated delta rule that are not products with
// weights, and the gate of a feed-forward, on the first GPU. Sizes are those of Qwen3.5-4B.
//
//   delta_bench [tokens]
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <vector>

#include "engine/model/ops/activate.h"
#include "engine/model/ops/causal_conv.h"
#include "engine/model/ops/gated_delta_rule.h"
#include "engine/model/ops/gated_norm.h"
#include "engine/model/ops/rotary.h"

namespace sluice::bench {
namespace {

using namespace engine;

constexpr int kWarmUps = 3;
constexpr int kRuns = 9;
constexpr double kEpsilon = 1e-6;

// Prints the median time.
void show(const char* name, const std::function<void()>& call) {
  std::vector<float> times;
  for (int run = 0; run < kWarmUps + kRuns; ++run) {
    c10::Event first(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event last(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    const auto stream = c10::cuda::getCurrentCUDAStream().unwrap();
    first.record(stream);
    call();
    last.record(stream);
    last.synchronize();
    if (run >= kWarmUps) times.push_back(static_cast<float>(first.elapsedTime(last)));
  }
  std::sort(times.begin(), times.end());
  std::printf("%-36s %8.3f ms  (%.3f to %.3f)\n", name, times[kRuns / 2], times.front(),
              times.back());
}

void show_delta(std::int64_t tokens, const at::TensorOptions& options) {
  const DeltaHeads heads = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
  const auto wide = options.dtype(at::kFloat);
  const at::Tensor products = at::randn(
      {1, tokens, heads.qkv_width() + heads.value_width() + 2 * heads.value_heads}, options);
  const at::Tensor gradients = at::empty(products.sizes(), options);
  const at::Tensor mixed = products.narrow(-1, 0, heads.qkv_width());
  const at::Tensor gate = products.narrow(-1, heads.qkv_width(), heads.value_width());
  const at::Tensor taps = at::randn({heads.qkv_width(), 1, 4}, options);
  const at::Tensor of_taps = at::zeros(taps.sizes(), wide);
  const at::Tensor grad_qkv = at::randn({1, tokens, heads.qkv_width()}, options);
  show("convolution, forward", [&] { causal_conv_silu(mixed, taps, nullptr); });
  show("convolution, backward", [&] {
    causal_conv_silu_backward(grad_qkv, mixed, taps, nullptr,
                              gradients.narrow(-1, 0, heads.qkv_width()), of_taps);
  });
  const at::Tensor qkv = causal_conv_silu(mixed, taps, nullptr);
  const at::Tensor decay = at::rand({1, tokens, heads.value_heads}, wide).neg();
  const at::Tensor rate = at::rand({1, tokens, heads.value_heads}, wide);
  const DeltaInputs inputs = {.qkv = qkv, .decay = decay, .rate = rate};
  const at::Tensor gradient = at::randn({1, tokens, heads.value_width()}, options);
  show("delta rule, forward", [&] { gated_delta_rule(inputs, heads, nullptr); });
  show("delta rule, backward",
       [&] { gated_delta_rule_backward(gradient, inputs, heads, nullptr); });
  const at::Tensor output = gated_delta_rule(inputs, heads, nullptr);
  const at::Tensor weight = at::randn({heads.value_dim}, options);
  const at::Tensor of_weight = at::zeros({heads.value_dim}, wide);
  show("gated norm, forward", [&] { gated_rms_norm(output, gate, weight, kEpsilon); });
  show("gated norm, backward", [&] {
    gated_rms_norm_backward(gradient, output, gate, weight, kEpsilon,
                            gradients.narrow(-1, heads.qkv_width(), heads.value_width()),
                            of_weight);
  });
}

void show_rest(std::int64_t tokens, const at::TensorOptions& options) {
  const HeadShape heads = {.heads = 16, .kv_heads = 4, .head_dim = 256};
  RotaryFrequencies frequencies;
  frequencies.of_pair.assign(static_cast<std::size_t>(heads.head_dim / 8), 0.01F);
  const Rotary rotary = {.heads = heads, .frequencies = frequencies, .place = {}};
  const at::Tensor packed = at::randn({1, tokens, heads.width()}, options);
  const at::Tensor weight = at::randn({heads.head_dim}, options);
  const at::Tensor sum = at::zeros({heads.head_dim}, options.dtype(at::kFloat));
  const HeadNorms norms = {.weights = {weight, weight}, .epsilon = kEpsilon};
  at::Tensor grad = at::randn(packed.sizes(), options);
  show("norm and rotation, forward", [&] { norm_and_rotate(packed, norms, rotary); });
  show("norm and rotation, backward", [&] {
    norm_and_rotate_backward(grad, packed, norms, {sum, sum}, rotary);
  });
  constexpr std::int64_t kWidth = 9216;
  at::Tensor both = at::randn({1, tokens, 2 * kWidth}, options);
  at::Tensor of_product = at::randn({1, tokens, kWidth}, options);
  for (const auto& [name, back, activation] :
       {std::tuple{"SwiGLU, forward", "SwiGLU, backward", Activation::kSilu},
        std::tuple{"GeGLU, forward", "GeGLU, backward", Activation::kGeluTanh}}) {
    show(name, [&] { gated(both, activation); });
    show(back, [&] { gated_backward(both, of_product, activation); });
  }
}

int run(int argc, char** argv) {
  constexpr std::int64_t kTokens = 8192;
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) : kTokens;
  if (tokens <= 0 || c10::cuda::device_count() == 0) {
    std::fprintf(stderr, "delta_bench needs a GPU, and a number of tokens above 0\n");
    return 2;
  }
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  std::printf("%lld tokens in bf16, medians of %d runs\n", static_cast<long long>(tokens), kRuns);
  show_delta(tokens, options);
  show_rest(tokens, options);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "delta_bench: %s\n", error.what());
    return 1;
  }
}
