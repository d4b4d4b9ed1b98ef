#include "engine/model/ops/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>

#include <mutex>

#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {
namespace {

// Flash attention of every architecture serves these, backward too.
constexpr std::int64_t kLargestHead = 128;
constexpr std::int64_t kHeadMultiple = 8;

constexpr int kAmpere = 8;
constexpr int kHopper = 9;
constexpr std::int64_t kFewestCudnnTokens = 512;

// The device's default generator, from which both kernels draw, set for one call.
class SeededGenerator {
 public:
  SeededGenerator(at::Device device, std::uint64_t seed)
      : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    seed_before_ = generator_.current_seed();
    offset_before_ = generator_.get_offset();
    generator_.set_current_seed(seed);  // and offset 0
  }
  ~SeededGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_current_seed(seed_before_);
    generator_.set_offset(offset_before_);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;

 private:
  at::Generator generator_;
  std::uint64_t seed_before_ = 0;
  std::uint64_t offset_before_ = 0;
};

// ATen has no argument for it. Only around kernels that know a deterministic form.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on)
      : before_(at::globalContext().deterministicAlgorithms()),
        warn_only_before_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        fill_before_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(on, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(before_, warn_only_before_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_before_);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool before_;
  bool warn_only_before_;
  bool fill_before_;
};

// By shape and options alone, so that forward, recompute and backward agree.
bool takes_cudnn(const at::Tensor& query, const AttentionOptions& options) {
  return !(options.dropout.active() && options.deterministic) &&
         query.size(2) >= kFewestCudnnTokens && cuda_major(query.device()) >= kHopper &&
         at::Context::hasCuDNN();
}

// Of either kernel's results.
template <typename Result>
Attended attended_of(const Result& result) {
  return {.output = merge_heads(std::get<0>(result)),
          .logsumexp = std::get<1>(result),
          .philox_seed = std::get<6>(result),
          .philox_offset = std::get<7>(result)};
}

}  // namespace

bool has_cuda_attention(const at::Tensor& qkv, std::int64_t head_dim) {
  return c10::isReducedFloatingType(qkv.scalar_type()) && head_dim <= kLargestHead &&
         head_dim % kHeadMultiple == 0 && cuda_major(qkv.device()) >= kAmpere;
}

Attended cuda_attention(const HeadViews& heads, const AttentionOptions& options) {
  const SeededGenerator seeded(heads.query.device(), options.dropout.seed);
  const double probability = options.dropout.probability;
  if (takes_cudnn(heads.query, options)) {
    return attended_of(at::_scaled_dot_product_cudnn_attention(
        heads.query, heads.key, heads.value, std::nullopt, /*compute_log_sumexp=*/true, probability,
        /*is_causal=*/true));
  }
  return attended_of(at::_scaled_dot_product_flash_attention(heads.query, heads.key, heads.value,
                                                             probability, /*is_causal=*/true));
}

HeadGradients cuda_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                      const Attended& attended, const AttentionOptions& options) {
  const at::Tensor output = split_heads(attended.output, options.heads);
  const std::int64_t length = heads.query.size(2);
  HeadGradients gradients;
  const bool cudnn = takes_cudnn(heads.query, options);
  if (cudnn && !options.deterministic) {
    std::tie(gradients.query, gradients.key, gradients.value) =
        at::_scaled_dot_product_cudnn_attention_backward(
            grad_heads, heads.query, heads.key, heads.value, output, attended.logsumexp,
            attended.philox_seed, attended.philox_offset, {}, {}, {}, length, length,
            options.dropout.probability, /*is_causal=*/true);
    return gradients;
  }
  const DeterministicScope scope(options.deterministic);
  const at::Tensor logsumexp = cudnn ? attended.logsumexp.squeeze(-1) : attended.logsumexp;
  std::tie(gradients.query, gradients.key, gradients.value) =
      at::_scaled_dot_product_flash_attention_backward(
          grad_heads, heads.query, heads.key, heads.value, output, logsumexp, {}, {}, length,
          length, options.dropout.probability, /*is_causal=*/true, attended.philox_seed,
          attended.philox_offset);
  return gradients;
}

}  // namespace sluice::engine
