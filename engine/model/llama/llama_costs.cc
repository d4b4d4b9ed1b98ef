#include "engine/model/llama/llama_costs.h"

#include <algorithm>

#include "engine/model/op_costs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

// Whether kernels of our own take rows of so many numbers (fused_kernels.h); ATen's operators make
// copies.
bool is_fused(const PassShape& pass, const PeakOptions& options, std::int64_t columns) {
  constexpr std::int64_t kPack = 8;
  return !options.cpu && pass.number_bytes < kFp32Bytes && columns % kPack == 0;
}

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

class EmbeddingKind final : public UnitKind {
 public:
  explicit EmbeddingKind(const LlamaShape& shape)
      : UnitKind("embedding", UnitRole::kEmbedding), hidden_(shape.hidden) {}

  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  // Forward copies a token's row; backward adds its gradient to an fp32 row.
  Traffic traffic(std::int64_t number_bytes) const override {
    const auto hidden = static_cast<double>(hidden_);
    const auto width = static_cast<double>(number_bytes);
    return {.forward = hidden * 2 * width, .backward = hidden * (width + 2 * kFp32Bytes)};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    // Its output; or its gradient, and that in fp32.
    return bytes(pass.rows() * hidden_ * (pass.number_bytes + kFp32Bytes));
  }

 private:
  std::int64_t hidden_;
};

class BlockKind final : public UnitKind {
 public:
  BlockKind(const LlamaShape& shape, bool windowed)
      : UnitKind(windowed ? "windowed block" : "block", UnitRole::kBlock),
        shape_(shape),
        attention_{.heads = shape.heads,
                   .kv_heads = shape.kv_heads,
                   .head_dim = shape.head_dim,
                   .window = windowed ? shape.window.tokens : 0} {}

  Flops flops(std::int64_t tokens) const override {
    const auto hidden = static_cast<double>(shape_.hidden);
    const auto ffn = static_cast<double>(shape_.ffn);
    const double products =
        hidden * static_cast<double>(shape_.qkv_width() + shape_.query_width()) + 3 * hidden * ffn;
    const double weights = 2 * products;
    const double scores = 2 * attention_.score_products(tokens);
    // Attention is two products forward; backward makes the scores again and four products more.
    return {.forward = weights + 2 * scores,
            .backward = 2 * weights + 5 * scores,
            .recompute = weights - 2 * hidden * ffn + 2 * scores};
  }

  // Queries, keys and values; attention's output; the residual stream between the branches; the
  // feed-forward before its gate. In fp32 two norms' statistics and a sum of each head.
  std::uint64_t saved_bytes(const PassShape& pass) const override {
    constexpr std::int64_t kStatistics = 2;
    const std::int64_t numbers =
        shape_.qkv_width() + shape_.query_width() + shape_.hidden + 2 * shape_.ffn;
    return bytes(pass.rows() *
                 (numbers * pass.number_bytes + (kStatistics + shape_.heads) * kFp32Bytes));
  }
  KvShape kv_shape() const override {
    return {.heads = shape_.kv_heads, .head_dim = shape_.head_dim};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    PeakOptions here = options;
    here.plain_attention |= options.cpu && shape_.attention_dropout > 0;
    return 2 * numbers_bytes(pass, shape_.hidden) +
           std::max(saved_bytes(pass) + feed_forward_bytes(pass, here),
                    attention_bytes(pass, here));
  }

 private:
  static std::uint64_t numbers_bytes(const PassShape& pass, std::int64_t of_token) {
    return bytes(pass.rows() * of_token * pass.number_bytes);
  }

  // In the feed-forward's backward, beside what was saved: its product and gradient in one (where
  // no kernel does it at once, what that is made of); then the norm's output, or its gradient.
  std::uint64_t feed_forward_bytes(const PassShape& pass, const PeakOptions& options) const {
    constexpr std::int64_t kCopies = 6;
    const std::int64_t ffn = shape_.ffn * (is_fused(pass, options, shape_.ffn) ? 1 : kCopies);
    const std::uint64_t bias =
        shape_.mlp_bias ? bias_sum_bytes(pass, 2 * shape_.ffn, options.cpu) : 0;
    return std::max(numbers_bytes(pass, ffn), numbers_bytes(pass, 2 * shape_.hidden) +
                                                  std::max(norm_bytes(pass, options), bias));
  }

  // In attention's backward, and when its gradient is turned back.
  std::uint64_t attention_bytes(const PassShape& pass, const PeakOptions& options) const {
    return std::max(kernel_bytes(pass, options), turn_bytes(pass, options));
  }

  // The residual stream's gradient; queries, keys and values, those turned where that is done
  // again, the output with statistics; gradients of output, of queries, keys and values, and these
  // side by side.
  std::uint64_t kernel_bytes(const PassShape& pass, const PeakOptions& options) const {
    const std::int64_t turned = shape_.head_norms ? shape_.query_width() + shape_.key_width() : 0;
    return numbers_bytes(
               pass, shape_.hidden + 2 * shape_.query_width() + 3 * shape_.qkv_width() + turned) +
           bytes(pass.rows() * (2 + shape_.heads) * kFp32Bytes) +
           attention_.backward_bytes(pass, options);
  }

  // The residual stream's gradient, what was saved, the gradient; by ATen's operators fp32 copies.
  std::uint64_t turn_bytes(const PassShape& pass, const PeakOptions& options) const {
    const std::int64_t copies = shape_.head_norms ? 6 : 3;
    constexpr std::int64_t kPairs = 2;  // a thread of the kernel has a pack of each half
    const bool fused = is_fused(pass, options, shape_.head_dim / kPairs);
    const std::int64_t wide = fused ? 0 : copies * (shape_.query_width() + shape_.key_width());
    return numbers_bytes(pass, shape_.hidden + 2 * shape_.qkv_width()) +
           bytes(pass.rows() * (wide + 1) * kFp32Bytes) +
           (shape_.qkv_bias ? bias_sum_bytes(pass, shape_.qkv_width(), options.cpu) : 0);
  }

  // A norm by ATen's operators: fp32 copies.
  std::uint64_t norm_bytes(const PassShape& pass, const PeakOptions& options) const {
    constexpr std::int64_t kCopies = 5;
    return is_fused(pass, options, shape_.hidden)
               ? 0
               : bytes(pass.rows() * kCopies * shape_.hidden * kFp32Bytes);
  }

  LlamaShape shape_;
  AttentionCosts attention_;
};

class HeadKind final : public UnitKind {
 public:
  HeadKind(const LlamaShape& shape, std::int64_t padded_vocab)
      : UnitKind("head", UnitRole::kHead),
        costs_{.hidden = shape.hidden,
               .vocab = shape.vocab,
               .columns = shape.tied && padded_vocab != 0 ? padded_vocab : shape.vocab} {}

  Flops flops(std::int64_t /*tokens*/) const override { return costs_.flops(); }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    constexpr std::int64_t kStatistics = 1;
    constexpr std::int64_t kCopies = 5;  // a norm by ATen's operators: fp32 copies
    const std::int64_t wide = is_fused(pass, options, costs_.hidden) ? 0 : kCopies * costs_.hidden;
    return costs_.peak_bytes(pass, options, kStatistics) + bytes(pass.rows() * wide * kFp32Bytes);
  }

 private:
  OutputCosts costs_;
};

}  // namespace

std::shared_ptr<const UnitKind> llama_embedding_kind(const LlamaShape& shape) {
  return std::make_shared<EmbeddingKind>(shape);
}

std::shared_ptr<const UnitKind> llama_block_kind(const LlamaShape& shape, bool windowed) {
  return std::make_shared<BlockKind>(shape, windowed);
}

std::shared_ptr<const UnitKind> llama_head_kind(const LlamaShape& shape,
                                                std::int64_t padded_vocab) {
  return std::make_shared<HeadKind>(shape, padded_vocab);
}

}  // namespace sluice::engine
