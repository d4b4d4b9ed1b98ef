#include "engine/model/llama/llama_costs.h"

#include <algorithm>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/llama/llama_layout.h"
#include "engine/model/op_costs.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

// Whether our own kernels compute rows of `columns` numbers (fused_kernels.h). ATen's operators
// make copies.
bool is_fused(const PassShape& pass, const PeakOptions& options, std::int64_t columns) {
  constexpr std::int64_t kPack = 8;
  return !options.cpu && pass.number_bytes < kFp32Bytes && columns % kPack == 0;
}

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

class EmbeddingKind final : public UnitKind {
 public:
  EmbeddingKind(const LlamaShape& shape, bool is_trained)
      : UnitKind("embedding", UnitRole::kEmbedding),
        hidden_(shape.hidden),
        is_trained_(is_trained) {}

  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  // Forward copies a token's row; backward adds its gradient to an fp32 row.
  Traffic traffic(std::int64_t number_bytes) const override {
    const auto hidden = static_cast<double>(hidden_);
    const auto width = static_cast<double>(number_bytes);
    return {.forward = hidden * 2 * width,
            .backward = is_trained_ ? hidden * (width + 2 * kFp32Bytes) : 0};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    // The output; or its gradient, also in fp32.
    return bytes(pass.rows() * hidden_ * (pass.number_bytes + kFp32Bytes));
  }

 private:
  std::int64_t hidden_;
  bool is_trained_;
};

class BlockKind final : public UnitKind {
 public:
  BlockKind(const LlamaShape& shape, const LoraRecipe& lora, bool windowed)
      : UnitKind(windowed ? "windowed block" : "block", UnitRole::kBlock),
        shape_(shape),
        rank_(lora.rank),
        drops_(lora.dropout > 0),
        block_(llama_block_spec(shape, windowed)),
        adapters_(adapter_numbers(block_, lora)) {}

  Flops flops(std::int64_t tokens) const override { return block_flops(block_, adapters_, tokens); }

  // Norms, residuals, rotary positions, the gate, and norms of heads. Backward reads gradient and
  // input, and adds to the stream's gradient. It computes the gate again together with its
  // gradient.
  Traffic traffic(std::int64_t number_bytes) const override {
    const auto hidden = static_cast<double>(shape_.hidden);
    const auto ffn = static_cast<double>(shape_.ffn);
    const auto turned = static_cast<double>(shape_.query_width() + shape_.key_width());
    const double heads = 2 * turned * (shape_.head_norms ? 2 : 1);
    const auto width = static_cast<double>(number_bytes);
    return {.forward = width * (10 * hidden + heads + 3 * ffn),
            .backward = width * (8 * hidden + heads + 6 * ffn)};
  }

  std::uint64_t saved_bytes(const PassShape& pass) const override {
    return block_saved_bytes(block_, pass);
  }
  KvShape kv_shape() const override {
    return {.heads = shape_.kv_heads, .head_dim = shape_.head_dim};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    PeakOptions here = options;
    here.plain_attention |= options.cpu && shape_.attention_dropout > 0;
    if (pieces(pass).cut()) return peak_in_pieces(pass, here);
    return 2 * numbers_bytes(pass, shape_.hidden) +
           std::max(saved_bytes(pass) + feed_forward_bytes(pass, here),
                    attention_bytes(pass, here)) +
           adapter_bytes(pass);
  }

 private:
  RowPieces pieces(const PassShape& pass) const {
    return RowPieces(pass.rows(), shape_.piece_rows);
  }

  // The feed-forward's backward takes a piece's middle and that of the uncut pass, and attention's
  // backward takes the first norm's rows at its end.
  std::uint64_t peak_in_pieces(const PassShape& pass, const PeakOptions& options) const {
    const PassShape piece = {.tokens = pieces(pass).largest(), .number_bytes = pass.number_bytes};
    const std::uint64_t feed_forward =
        saved_bytes(pass) + numbers_bytes(piece, 2 * shape_.ffn) +
        std::max(feed_forward_bytes(piece, options),
                 numbers_bytes(piece, shape_.hidden) + norm_bytes(piece, options)) +
        adapter_bytes(piece);
    const std::uint64_t end =
        numbers_bytes(pass, 2 * shape_.hidden + shape_.qkv_width()) + norm_bytes(pass, options);
    return 2 * numbers_bytes(pass, shape_.hidden) +
           std::max(feed_forward,
                    std::max(attention_bytes(pass, options), end) + adapter_bytes(pass));
  }

  static std::uint64_t numbers_bytes(const PassShape& pass, std::int64_t of_token) {
    return bytes(pass.rows() * of_token * pass.number_bytes);
  }

  // The separate gradient of one product's output, two products with A or B, and what dropout
  // leaves of an input, or of its gradient.
  std::uint64_t adapter_bytes(const PassShape& pass) const {
    if (rank_ == 0) return 0;
    const std::int64_t dropped = drops_ ? adapters_.widest_in : 0;
    return numbers_bytes(pass, adapters_.widest_out + 2 * rank_ + dropped);
  }

  // The feed-forward's backward, in addition to saved tensors: its product and gradient in one
  // (without a fused kernel, also their intermediates), and then the norm's output, or its
  // gradient.
  std::uint64_t feed_forward_bytes(const PassShape& pass, const PeakOptions& options) const {
    constexpr std::int64_t kCopies = 6;
    const std::int64_t ffn = shape_.ffn * (is_fused(pass, options, shape_.ffn) ? 1 : kCopies);
    const std::uint64_t bias =
        shape_.mlp_bias ? bias_sum_bytes(pass, 2 * shape_.ffn, options.cpu) : 0;
    const auto copies = [&](std::int64_t columns) {
      return product_copies_bytes(pass, options, shape_.hidden, columns);
    };
    return std::max({numbers_bytes(pass, ffn), numbers_bytes(pass, shape_.ffn) + copies(shape_.ffn),
                     numbers_bytes(pass, 2 * shape_.hidden) +
                         std::max({norm_bytes(pass, options), bias, copies(2 * shape_.ffn)})});
  }

  // Attention's backward, and the rotation of its gradient.
  std::uint64_t attention_bytes(const PassShape& pass, const PeakOptions& options) const {
    const std::int64_t parts =
        pieces(pass).cut() && shape_.attention_dropout == 0 ? head_parts(shape_.kv_heads) : 1;
    if (parts > 1) {
      const std::uint64_t in_parts = parts_bytes(pass, options, parts);
      return shape_.head_norms ? in_parts : std::max(in_parts, turn_bytes(pass, options));
    }
    return std::max(kernel_bytes(pass, options), turn_bytes(pass, options));
  }

  // The residual stream's gradient; queries, keys and values, and their rotated copies if the
  // rotation is repeated; and the output with statistics. Also the gradients of output, queries,
  // keys and values, the last three also packed.
  std::uint64_t kernel_bytes(const PassShape& pass, const PeakOptions& options) const {
    const std::int64_t turned = shape_.head_norms ? shape_.query_width() + shape_.key_width() : 0;
    return numbers_bytes(
               pass, shape_.hidden + 2 * shape_.query_width() + 3 * shape_.qkv_width() + turned) +
           bytes(pass.rows() * (2 + shape_.heads) * kFp32Bytes) +
           attention_costs(block_).backward_bytes(pass, options);
  }

  // Attention's backward in parts, whose gradients replace queries, keys and values. A part copies
  // the latter, the output and its gradient. It has separate and packed gradients of queries, keys
  // and values, and with norms of heads their rotated copies.
  std::uint64_t parts_bytes(const PassShape& pass, const PeakOptions& options,
                            std::int64_t parts) const {
    AttentionCosts part = attention_costs(block_);
    part.heads /= parts;
    part.kv_heads /= parts;
    const std::int64_t query = shape_.query_width() / parts;
    const std::int64_t key = shape_.key_width() / parts;
    const std::int64_t turned = shape_.head_norms ? query + key : 0;
    const std::int64_t wide = turn_copies(pass, options) * turned;
    return numbers_bytes(pass, shape_.hidden + shape_.qkv_width() + 2 * shape_.query_width() +
                                   3 * (query + 2 * key) + 2 * query + turned) +
           bytes(pass.rows() * (2 + shape_.heads) * kFp32Bytes) +
           std::max(part.backward_bytes(pass, options), bytes(pass.rows() * wide * kFp32Bytes));
  }

  // The fp32 copies of a rotation by ATen's operators.
  std::int64_t turn_copies(const PassShape& pass, const PeakOptions& options) const {
    constexpr std::int64_t kPairs = 2;  // each thread of the kernel has a pack of each half
    if (is_fused(pass, options, shape_.head_dim / kPairs)) return 0;
    return shape_.head_norms ? 6 : 3;
  }

  // The residual stream's gradient, saved tensors and the gradient; with ATen's operators also fp32
  // copies.
  std::uint64_t turn_bytes(const PassShape& pass, const PeakOptions& options) const {
    const std::int64_t wide =
        turn_copies(pass, options) * (shape_.query_width() + shape_.key_width());
    return numbers_bytes(pass, shape_.hidden + 2 * shape_.qkv_width()) +
           bytes(pass.rows() * (wide + 1) * kFp32Bytes) +
           (shape_.qkv_bias ? bias_sum_bytes(pass, shape_.qkv_width(), options.cpu) : 0);
  }

  // The fp32 copies of a norm by ATen's operators.
  std::uint64_t norm_bytes(const PassShape& pass, const PeakOptions& options) const {
    constexpr std::int64_t kCopies = 5;
    return is_fused(pass, options, shape_.hidden)
               ? 0
               : bytes(pass.rows() * kCopies * shape_.hidden * kFp32Bytes);
  }

  LlamaShape shape_;
  std::int64_t rank_;
  bool drops_;
  BlockSpec block_;
  AdapterNumbers adapters_;
};

class HeadKind final : public UnitKind {
 public:
  HeadKind(const LlamaShape& shape, bool is_trained, std::int64_t padded_vocab)
      : UnitKind("head", UnitRole::kHead),
        is_trained_(is_trained),
        costs_{.hidden = shape.hidden,
               .vocab = shape.vocab,
               .columns = shape.tied && padded_vocab != 0 ? padded_vocab : shape.vocab} {}

  Flops flops(std::int64_t /*tokens*/) const override {
    Flops flops = costs_.flops();
    if (!is_trained_) flops.backward /= 2;  // the input's gradient, without the weight's
    return flops;
  }
  Traffic traffic(std::int64_t number_bytes) const override {
    return logits_traffic(costs_.vocab, number_bytes);
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    constexpr std::int64_t kStatistics = 1;
    constexpr std::int64_t kCopies = 5;  // fp32 copies of a norm by ATen's operators
    const std::int64_t wide = is_fused(pass, options, costs_.hidden) ? 0 : kCopies * costs_.hidden;
    return costs_.peak_bytes(pass, options, kStatistics) + bytes(pass.rows() * wide * kFp32Bytes);
  }

 private:
  bool is_trained_;
  OutputCosts costs_;
};

}  // namespace

std::shared_ptr<const UnitKind> llama_embedding_kind(const LlamaShape& shape,
                                                     const LoraRecipe& lora) {
  return std::make_shared<EmbeddingKind>(shape, !lora.exists());
}

std::shared_ptr<const UnitKind> llama_block_kind(const LlamaShape& shape, const LoraRecipe& lora,
                                                 bool windowed) {
  return std::make_shared<BlockKind>(shape, lora, windowed);
}

std::shared_ptr<const UnitKind> llama_head_kind(const LlamaShape& shape, const LoraRecipe& lora,
                                                std::int64_t padded_vocab) {
  return std::make_shared<HeadKind>(shape, !lora.exists(), padded_vocab);
}

}  // namespace sluice::engine
