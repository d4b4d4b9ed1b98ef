#include "engine/model/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>

#include <mutex>

#include "engine/model/cuda_kernels.h"
#include "engine/model/plain_attention.h"

namespace sluice::engine {
namespace {

// Flash attention of every architecture serves these, backward too.
constexpr std::int64_t kLargestFlashHead = 128;
constexpr std::int64_t kFlashHeadMultiple = 8;

enum class Kernel : std::uint8_t { kFlashCpu, kFlashCuda, kPlain };

Kernel kernel_for(const at::Tensor& qkv, const AttentionOptions& options) {
  if (qkv.is_cpu()) return options.dropout.active() ? Kernel::kPlain : Kernel::kFlashCpu;
  const std::int64_t head_dim = qkv.size(-1) / 3 / options.heads;
  const bool flash = c10::isReducedFloatingType(qkv.scalar_type()) &&
                     head_dim <= kLargestFlashHead && head_dim % kFlashHeadMultiple == 0 &&
                     cuda_has_flash_attention(qkv.device());
  return flash ? Kernel::kFlashCuda : Kernel::kPlain;
}

// The device's default generator, from which the flash kernel draws, set for one call.
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

}  // namespace

Attended attention(const at::Tensor& qkv, const AttentionOptions& options) {
  const HeadViews heads(qkv, options.heads);
  Attended attended;
  switch (kernel_for(qkv, options)) {
    case Kernel::kPlain:
      attended.output = plain_attention(heads, options.dropout);
      return attended;
    case Kernel::kFlashCpu: {
      auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          heads.query, heads.key, heads.value, 0.0, /*is_causal=*/true);
      attended.output = merge_heads(output);
      attended.logsumexp = std::move(logsumexp);
      return attended;
    }
    case Kernel::kFlashCuda: {
      const SeededGenerator seeded(qkv.device(), options.dropout.seed);
      auto result = at::_scaled_dot_product_flash_attention(
          heads.query, heads.key, heads.value, options.dropout.probability, /*is_causal=*/true);
      attended.output = merge_heads(std::get<0>(result));
      attended.logsumexp = std::get<1>(result);
      attended.philox_seed = std::get<6>(result);
      attended.philox_offset = std::get<7>(result);
      return attended;
    }
  }
  return attended;
}

at::Tensor attention_backward(const at::Tensor& grad_output, const at::Tensor& qkv,
                              const Attended& attended, const AttentionOptions& options) {
  const HeadViews heads(qkv, options.heads);
  const Kernel kernel = kernel_for(qkv, options);
  at::Tensor grad_qkv = at::empty_like(qkv);
  const HeadViews gradients(grad_qkv, options.heads);
  const at::Tensor grad_heads = split_heads(grad_output, options.heads);
  if (kernel == Kernel::kPlain) {
    plain_attention_backward(grad_heads, heads, options.dropout, gradients);
    return grad_qkv;
  }
  const at::Tensor output = split_heads(attended.output, options.heads);
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  if (kernel == Kernel::kFlashCpu) {
    std::tie(query, key, value) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_heads, heads.query, heads.key, heads.value, output, attended.logsumexp, 0.0,
        /*is_causal=*/true);
  } else {
    const DeterministicScope scope(options.deterministic);
    const std::int64_t length = qkv.size(1);
    std::tie(query, key, value) = at::_scaled_dot_product_flash_attention_backward(
        grad_heads, heads.query, heads.key, heads.value, output, attended.logsumexp, {}, {}, length,
        length, options.dropout.probability, /*is_causal=*/true, attended.philox_seed,
        attended.philox_offset);
  }
  gradients.query.copy_(query);
  gradients.key.copy_(key);
  gradients.value.copy_(value);
  return grad_qkv;
}

}  // namespace sluice::engine
