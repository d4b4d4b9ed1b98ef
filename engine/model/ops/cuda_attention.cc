#include "engine/model/ops/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>

#include <mutex>
#include <optional>

#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {
namespace {

// FlashAttention supports heads of the first size on every architecture, backward too, and those of
// the second on the GPUs of data centers. Others lack the memory for some of those in between, and
// for the widest with dropout.
constexpr std::int64_t kLargestHead = 128;
constexpr std::int64_t kLargestWideHead = 256;
constexpr std::int64_t kHeadMultiple = 8;

constexpr int kAmpere = 8;
constexpr int kHopper = 9;
constexpr std::int64_t kFewestCudnnTokens = 512;

// Sets the seed of the device's default generator, from which both kernels draw, for one call.
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

// ATen has no argument for this. Use it only around kernels that have a deterministic form.
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

// Depends only on shape and options, so that forward, recompute and backward agree.
bool takes_cudnn(const at::Tensor& query, const AttentionOptions& options) {
  return !(options.dropout.active() && options.deterministic) && !options.sinks.defined() &&
         !options.reach.is_short(query.size(2)) && query.size(2) >= kFewestCudnnTokens &&
         query.size(3) <= kLargestHead && cuda_major(query.device()) >= kHopper &&
         at::Context::hasCuDNN();
}

bool takes_wide_heads(at::Device device, std::int64_t head_dim, bool drops) {
  constexpr std::int64_t kLast = 192;   // of those that others have room for
  constexpr std::int64_t kAgain = 224;  // those beyond it, without dropout
  if (head_dim > kLargestWideHead) return false;
  const int major = cuda_major(device);
  if (major == kHopper || (major == kAmpere && cuda_minor(device) == 0)) return true;
  return head_dim <= kLast || (head_dim > kAgain && !drops);
}

// Works for the results of either kernel.
template <typename Result>
Attended attended_of(const Result& result) {
  return {.output = merge_heads(std::get<0>(result)),
          .logsumexp = std::get<1>(result),
          .philox_seed = std::get<6>(result),
          .philox_offset = std::get<7>(result)};
}

// FlashAttention with a window or documents. It needs [B, T, heads, head_dim], or all tokens of the
// micro-batch in one row with the offsets of its documents. If there are fewer queries than keys,
// its mask takes them for those of the last positions.
class ReachingFlash {
 public:
  ReachingFlash(const at::Tensor& query, const AttentionOptions& options)
      : documents_(options.reach.documents),
        batch_(query.size(0)),
        tokens_(query.size(2)),
        dropout_(options.dropout.probability),
        scale_(options.scale) {
    if (options.reach.window != 0) window_ = options.reach.window - 1;
  }

  at::Tensor laid(const at::Tensor& split) const {
    const at::Tensor by_token = split.transpose(1, 2);
    return documents_ == nullptr ? by_token : by_token.flatten(0, 1);
  }
  at::Tensor split(const at::Tensor& laid) const {
    return (documents_ == nullptr ? laid : laid.unflatten(0, {batch_, tokens_})).transpose(1, 2);
  }

  Attended forward(const HeadViews& heads) const {
    const std::optional<at::Tensor> starts =
        documents_ == nullptr ? std::nullopt : std::optional(documents_->starts);
    auto [output, logsumexp, state, unused, mask] = at::_flash_attention_forward(
        laid(heads.query), laid(heads.key), laid(heads.value), starts, starts, longest(),
        documents_ == nullptr ? heads.key.size(2) : longest(), dropout_, /*is_causal=*/true,
        /*return_debug_mask=*/false, scale_, window_, kNoneAhead);
    return {.output = merge_heads(split(output)),
            .logsumexp = std::move(logsumexp),
            .philox_seed = std::move(state),
            .philox_offset = std::move(unused)};
  }

  HeadGradients backward(const at::Tensor& grad_heads, const HeadViews& heads,
                         const Attended& attended) const {
    const at::Tensor starts = documents_ == nullptr ? at::Tensor() : documents_->starts;
    const at::Tensor output = split_heads(attended.output, heads.query.size(1));
    auto [query, key, value] = at::_flash_attention_backward(
        laid(grad_heads), laid(heads.query), laid(heads.key), laid(heads.value), laid(output),
        attended.logsumexp, starts, starts, longest(), longest(), dropout_, /*is_causal=*/true,
        attended.philox_seed, attended.philox_offset, scale_, window_, kNoneAhead);
    return {split(query), split(key), split(value)};
  }

 private:
  static constexpr std::int64_t kNoneAhead = 0;

  std::int64_t longest() const { return documents_ == nullptr ? tokens_ : documents_->longest; }

  const Documents* documents_;
  std::int64_t batch_;
  std::int64_t tokens_;
  double dropout_;
  std::optional<double> scale_;
  std::optional<std::int64_t> window_;
};

}  // namespace

bool has_cuda_attention(const at::Tensor& query, std::int64_t head_dim, bool drops) {
  return c10::isReducedFloatingType(query.scalar_type()) && head_dim % kHeadMultiple == 0 &&
         cuda_major(query.device()) >= kAmpere &&
         (head_dim <= kLargestHead || takes_wide_heads(query.device(), head_dim, drops));
}

Attended cuda_attention(const HeadViews& heads, const AttentionOptions& options) {
  const SeededGenerator seeded(heads.query.device(), options.dropout.seed);
  const double probability = options.dropout.probability;
  if (options.reach.is_short(heads.query.size(2)))
    return ReachingFlash(heads.query, options).forward(heads);
  if (takes_cudnn(heads.query, options)) {
    return attended_of(at::_scaled_dot_product_cudnn_attention(
        heads.query, heads.key, heads.value, std::nullopt, /*compute_log_sumexp=*/true, probability,
        /*is_causal=*/true, /*return_debug_mask=*/false, options.scale));
  }
  return attended_of(at::_scaled_dot_product_flash_attention(
      heads.query, heads.key, heads.value, probability, /*is_causal=*/true,
      /*return_debug_mask=*/false, options.scale));
}

Attended cuda_attend_last(const HeadViews& heads, const AttentionOptions& options) {
  return ReachingFlash(heads.query, {.heads = options.heads,
                                     .reach = {.window = options.reach.window},
                                     .scale = options.scale})
      .forward(heads);
}

HeadGradients cuda_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                      const Attended& attended, const AttentionOptions& options) {
  const std::int64_t length = heads.query.size(2);
  if (options.reach.is_short(length)) {
    const DeterministicScope scope(options.deterministic);
    return ReachingFlash(heads.query, options).backward(grad_heads, heads, attended);
  }
  const at::Tensor output = split_heads(attended.output, options.heads.heads);
  HeadGradients gradients;
  const bool cudnn = takes_cudnn(heads.query, options);
  if (cudnn && !options.deterministic) {
    std::tie(gradients.query, gradients.key, gradients.value) =
        at::_scaled_dot_product_cudnn_attention_backward(
            grad_heads, heads.query, heads.key, heads.value, output, attended.logsumexp,
            attended.philox_seed, attended.philox_offset, {}, {}, {}, length, length,
            options.dropout.probability, /*is_causal=*/true, options.scale);
    return gradients;
  }
  const DeterministicScope scope(options.deterministic);
  const at::Tensor logsumexp = cudnn ? attended.logsumexp.squeeze(-1) : attended.logsumexp;
  std::tie(gradients.query, gradients.key, gradients.value) =
      at::_scaled_dot_product_flash_attention_backward(
          grad_heads, heads.query, heads.key, heads.value, output, logsumexp, {}, {}, length,
          length, options.dropout.probability, /*is_causal=*/true, attended.philox_seed,
          attended.philox_offset, options.scale);
  return gradients;
}

}  // namespace sluice::engine
