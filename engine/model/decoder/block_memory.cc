#include "engine/model/decoder/block_memory.h"

#include <algorithm>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/decoder/experts_costs.h"
#include "engine/model/fp32_pieces.h"
#include "engine/model/op_costs.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

std::uint64_t bytes(std::int64_t count) { return static_cast<std::uint64_t>(count); }

std::uint64_t numbers_bytes(const PassShape& pass, std::int64_t of_token) {
  return bytes(pass.rows() * of_token * pass.number_bytes);
}

// The memory of one block's backward, in addition to its input and the output's gradient.
class BlockMemory {
 public:
  BlockMemory(const BlockSpec& block, const LoraRecipe& lora, const PassShape& pass,
              const PeakOptions& options)
      : block_(block),
        attention_(block.attention),
        lora_(lora),
        adapters_(adapter_numbers(block, lora)),
        pass_(pass),
        pieces_(pass.rows(), block.piece_rows),
        options_(options) {
    constexpr std::int64_t kLargestHeadWithDropout = 192;  // of kernels on every GPU
    options_.plain_attention |=
        attention_.dropout > 0 && (options.cpu || attention_.head_dim > kLargestHeadWithDropout);
  }

  std::uint64_t peak() const {
    const std::uint64_t saved = block_saved_bytes(block_, pass_) + dropped_bytes();
    if (pieces_.cut()) return in_pieces(saved);
    return std::max(saved + feed_forward_bytes(pass_), mixer_bytes()) + adapter_bytes(pass_);
  }

 private:
  // The feed-forward's backward takes a piece's middle and that of the uncut pass, and attention's
  // backward takes the first norm's rows at its end.
  std::uint64_t in_pieces(std::uint64_t saved) const {
    const PassShape piece = {.tokens = pieces_.largest(), .number_bytes = pass_.number_bytes};
    const std::uint64_t normed = numbers_bytes(piece, block_.hidden);
    const std::uint64_t of_piece =
        block_.mlp.gated ? std::max(feed_forward_bytes(piece), normed + norm_bytes(piece))
                         : feed_forward_bytes(piece) + normed;
    const std::uint64_t feed_forward =
        saved + numbers_bytes(piece, block_.mlp_in_width() + block_.logits()) + of_piece +
        adapter_bytes(piece);
    const std::uint64_t end =
        numbers_bytes(pass_, 2 * block_.hidden + block_.mixer_in_width()) + norm_bytes(pass_);
    return std::max(feed_forward, std::max(mixer_bytes(), end) + adapter_bytes(pass_));
  }

  // What dropout makes of the output's gradient.
  std::uint64_t dropped_bytes() const {
    return block_.residual_dropout > 0 ? numbers_bytes(pass_, block_.hidden) : 0;
  }

  // The separate gradient of one product's output, two products with A or B, and what dropout
  // leaves of an input, or of its gradient.
  std::uint64_t adapter_bytes(const PassShape& pass) const {
    if (!lora_.exists()) return 0;
    const std::int64_t dropped = lora_.dropout > 0 ? adapters_.widest_in : 0;
    return numbers_bytes(pass, adapters_.widest_out + 2 * lora_.rank + dropped);
  }

  // The feed-forward's backward, in addition to saved tensors: the activation's gradient. With a
  // gate this is its product and gradient in one (without a fused kernel, also their
  // intermediates), and then the norm's output, or its gradient.
  std::uint64_t feed_forward_bytes(const PassShape& pass) const {
    return fp8_bytes(pass, /*of_feed_forward=*/true) + wide_feed_forward_bytes(pass);
  }

  std::uint64_t wide_feed_forward_bytes(const PassShape& pass) const {
    const MlpSpec& mlp = block_.mlp;
    const auto copies = [&](std::int64_t columns) {
      return product_copies_bytes(pass, options_, block_.hidden, columns);
    };
    if (block_.experts.exist()) return experts_bytes(pass);
    const std::uint64_t bias = mlp.bias ? bias_sum_bytes(pass, mlp.in_width(), options_.cpu) : 0;
    if (!mlp.gated) return numbers_bytes(pass, mlp.width) + std::max(bias, copies(mlp.width));
    const bool fuses = fuses_rows(pass, options_, mlp.width);
    const std::int64_t width = mlp.width * (fuses ? 1 : kCopies);
    const std::uint64_t held = branch_norm_bytes(pass, 1);  // the last product's gradient
    const std::uint64_t norm = std::max(
        branch_norm_bytes(pass, 1) + numbers_bytes(pass, mlp.width) + copies(block_.hidden),
        branch_norm_bytes(pass, 3) + norm_bytes(pass));
    return std::max({block_.norms_branches() ? norm : 0, held + numbers_bytes(pass, width),
                     held + numbers_bytes(pass, mlp.width) + copies(mlp.width),
                     numbers_bytes(pass, 2 * block_.hidden) +
                         std::max({norm_bytes(pass), bias, copies(mlp.in_width())})});
  }

  std::uint64_t experts_bytes(const PassShape& pass) const {
    const bool is_fused = fuses_rows(pass, options_, block_.experts.width);
    const std::uint64_t adapters =
        has_expert_adapters(block_, lora_) ? expert_adapter_bytes(block_, pass, lora_) : 0;
    return adapters + std::max({experts_backward_bytes(block_, pass, options_,
                                                       {.activated = is_fused ? 2 : kCopies,
                                                        .is_trained = !lora_.exists()}),
                                shared_bytes(pass),
                                numbers_bytes(pass, 2 * block_.hidden + block_.mlp_width()) +
                                    norm_bytes(pass)});
  }

  // The backward of the shared expert: the norm's output, the sum of gradients, and one more; also
  // the activation and its gradient. What was saved for the other experts is free again.
  std::uint64_t shared_bytes(const PassShape& pass) const {
    const ExpertsSpec& experts = block_.experts;
    if (!experts.shared) return 0;
    const std::int64_t width = block_.mlp.width;
    const std::int64_t gates = fuses_rows(pass, options_, width) ? 2 : kCopies;
    const auto copies = [&](std::int64_t columns) {
      return product_copies_bytes(pass, options_, block_.hidden, columns);
    };
    const std::uint64_t widest =
        std::max({numbers_bytes(pass, gates * width), numbers_bytes(pass, width) + copies(width),
                  copies(2 * width)});
    const std::uint64_t held = numbers_bytes(pass, 3 * block_.hidden) + widest;
    return held - std::min(held, numbers_bytes(pass, 2 * experts.per_token * experts.width));
  }

  // The first branch's backward. A gate is kept, and opens attention's output again if that is in
  // memory as a whole. At the end its gradient is joined with that of the queries.
  std::uint64_t mixer_bytes() const {
    return fp8_bytes(pass_, /*of_feed_forward=*/false) + wide_mixer_bytes();
  }

  std::uint64_t wide_mixer_bytes() const {
    if (block_.delta.exists()) return delta_bytes();
    const std::int64_t gate = attention_.gate_width();
    if (gate == 0) return std::max(attention_bytes(), branch_bytes());
    constexpr std::int64_t kGates = 4;
    return std::max(attention_bytes() + numbers_bytes(pass_, pieces_.cut() ? gate : 2 * gate),
                    numbers_bytes(pass_, block_.hidden + attention_.in_width() +
                                             attention_.qkv_width() + kGates * gate));
  }

  // The largest of fp8_product_bytes().
  std::uint64_t fp8_bytes(const PassShape& pass, bool of_feed_forward) const {
    std::uint64_t largest = 0;
    for (const Fp8Product& product : fp8_products(block_))
      if (product.is_of_feed_forward == of_feed_forward)
        largest = std::max(largest, fp8_product_bytes(product, pass));
    return largest;
  }

  // Backward casts the output's gradient to both orders, or to one if weights have no gradients in
  // fp8. Then it casts the weight, or the input, whose product is a piece of the weight's gradient.
  // On the CPU fp32 copies of both factors are multiplied, and the result is cast.
  std::uint64_t fp8_product_bytes(const Fp8Product& product, const PassShape& pass) const {
    const bool puts_weight = !block_.fp8.wide_weight_gradients;
    const std::int64_t output = pass.rows() * product.out;
    const std::int64_t input = pass.rows() * product.in;
    const std::int64_t weight = product.in * product.out;
    const std::int64_t columns = block_.stores_in_first ? product.out : product.in;
    const std::int64_t piece = std::min(weight, fp8_piece_rows(columns) * columns);
    const std::int64_t wide = options_.cpu ? kFp32Bytes : 0;
    const std::int64_t narrowed = pass.number_bytes < kFp32Bytes ? wide : 0;
    const std::int64_t of_input = weight + wide * (output + weight) + narrowed * input;
    const std::int64_t left = piece / columns * pass.rows();
    const std::int64_t right = columns * pass.rows();
    const std::int64_t of_weight =
        puts_weight ? input + wide * (left + right) + kFp32Bytes * piece : 0;
    return bytes((puts_weight ? 2 : 1) * output + std::max(of_input, of_weight));
  }

  // Rows of a branch with a norm.
  std::uint64_t branch_norm_bytes(const PassShape& pass, std::int64_t rows) const {
    return block_.norms_branches() ? numbers_bytes(pass, rows * block_.hidden) : 0;
  }

  // The backward of the norm of attention's branch: the residual stream's gradient, the branch and
  // two more of its size, and what is saved for attention.
  std::uint64_t branch_bytes() const {
    if (!block_.norms_branches()) return 0;
    return numbers_bytes(pass_,
                         4 * block_.hidden + attention_.qkv_width() + attention_.query_width()) +
           statistics_bytes() + norm_bytes(pass_);
  }

  // The residual stream's gradient; products and their gradient; the convolution's output with its
  // gradient, and that of the rule's output. In addition the widest of what is computed in parts.
  std::uint64_t delta_bytes() const {
    const DeltaHeads& heads = block_.delta.heads;
    const std::int64_t width = block_.delta.in_width();
    const std::uint64_t held = numbers_bytes(
        pass_, block_.hidden + 2 * width + 2 * heads.qkv_width() + heads.value_width());
    const std::int64_t chunk = std::min(kDeltaChunk, pass_.tokens);
    const std::int64_t padded = (pass_.tokens + chunk - 1) / chunk * chunk;
    const std::int64_t part = delta_part_heads(heads, pass_.rows()) * heads.groups();
    const std::uint64_t rule = bytes(pass_.micro_batch * padded * part *
                                     delta_backward_numbers(heads, chunk) * kFp32Bytes);
    const std::uint64_t numbers =
        bytes(pass_.rows() * 5 * heads.value_heads * kFp32Bytes);  // rates, decays, gradients
    constexpr std::int64_t kRowCopies = 10;  // of a piece, by the convolution and the gated norm
    const std::int64_t piece = std::min(pass_.rows() * heads.qkv_width(), kFp32PieceNumbers);
    const std::uint64_t rows = bytes(kRowCopies * piece * kFp32Bytes);
    return held + numbers +
           std::max({rule, rows, product_copies_bytes(pass_, options_, block_.hidden, width)});
  }

  // Attention's backward, and the rotation of its gradient. Where nothing is rotated, the bound of
  // the rotation covers the sums for separate biases and the product that comes then.
  std::uint64_t attention_bytes() const {
    const bool in_parts = attention_.in_parts && pieces_.cut() && attention_.dropout == 0;
    const std::int64_t parts = in_parts ? head_parts(attention_.kv_heads) : 1;
    if (!attention_.rope.exists() && block_.names.has_packed_qkv()) return kernel_bytes();
    if (parts == 1) return std::max(kernel_bytes(), turn_bytes());
    return attention_.head_norms || !attention_.rope.exists()
               ? parts_bytes(parts)
               : std::max(parts_bytes(parts), turn_bytes());
  }

  // The residual stream's gradient; queries, keys and values, and their rotated copies if the
  // rotation is repeated; and the output with statistics. Also the gradients of output, queries,
  // keys and values, the last three also packed. Without a rotation they are packed when the kernel
  // is done, and summed for the biases.
  std::uint64_t kernel_bytes() const {
    const std::int64_t qkv = attention_.qkv_width();
    const std::uint64_t held =
        numbers_bytes(pass_, block_.hidden + 2 * attention_.query_width() + 2 * qkv +
                                 (attention_.head_norms ? turned_width() : 0)) +
        statistics_bytes();
    const std::uint64_t kernel = attention_costs(block_).backward_bytes(pass_, options_);
    const std::uint64_t packed = numbers_bytes(pass_, qkv);
    if (attention_.rope.exists() || !block_.names.has_packed_qkv()) return held + packed + kernel;
    return held + std::max(kernel, packed + qkv_bias_bytes());
  }

  // Attention's backward in parts, whose gradients replace queries, keys and values. A part copies
  // the latter, the output and its gradient. It has separate and packed gradients of queries, keys
  // and values, and with norms of heads their rotated copies.
  std::uint64_t parts_bytes(std::int64_t parts) const {
    AttentionCosts part = attention_costs(block_);
    part.heads /= parts;
    part.kv_heads /= parts;
    const std::int64_t query = attention_.query_width() / parts;
    const std::int64_t key = attention_.key_width() / parts;
    const std::int64_t turned = attention_.head_norms ? query + key : 0;
    const std::int64_t wide = turn_copies() * turned;
    return numbers_bytes(pass_, block_.hidden + attention_.qkv_width() +
                                    2 * attention_.query_width() + 3 * (query + 2 * key) +
                                    2 * query + turned) +
           statistics_bytes() +
           std::max(part.backward_bytes(pass_, options_), bytes(pass_.rows() * wide * kFp32Bytes));
  }

  // The residual stream's gradient, saved tensors and the gradient; with ATen's operators also fp32
  // copies.
  std::uint64_t turn_bytes() const {
    const std::int64_t wide = turn_copies() * turned_width();
    return numbers_bytes(pass_, block_.hidden + 2 * attention_.qkv_width()) +
           bytes(pass_.rows() * (wide + 1) * kFp32Bytes) + qkv_bias_bytes();
  }

  // The fp32 copies of a rotation by ATen's operators.
  std::int64_t turn_copies() const {
    constexpr std::int64_t kPairs = 2;  // each thread of the kernel has a pack of each half
    if (fuses_rows(pass_, options_, attention_.head_dim / kPairs) &&
        fuses_rows(pass_, options_, attention_.rope.rotated(attention_.head_dim) / kPairs))
      return 0;
    return attention_.head_norms ? 6 : 3;
  }

  std::int64_t turned_width() const { return attention_.query_width() + attention_.key_width(); }
  std::uint64_t qkv_bias_bytes() const {
    return attention_.qkv_bias ? bias_sum_bytes(pass_, attention_.qkv_width(), options_.cpu) : 0;
  }
  std::uint64_t statistics_bytes() const {
    // With sinks, also copies of the heads' sums, and of one head's output with its gradient.
    const std::int64_t of_sinks =
        attention_.sinks ? 3 * (attention_.heads + attention_.head_dim) : 0;
    return bytes(pass_.rows() * (2 + attention_.heads + of_sinks) * kFp32Bytes);
  }
  std::uint64_t norm_bytes(const PassShape& pass) const {
    return norm_copies_bytes(block_.norm, block_.hidden, pass, options_);
  }

  // A gate's backward by ATen's operators.
  static constexpr std::int64_t kCopies = 6;

  const BlockSpec& block_;
  const AttentionSpec& attention_;
  const LoraRecipe& lora_;
  AdapterNumbers adapters_;
  PassShape pass_;
  RowPieces pieces_;
  PeakOptions options_;
};

}  // namespace

bool fuses_rows(const PassShape& pass, const PeakOptions& options, std::int64_t columns) {
  constexpr std::int64_t kPack = 8;
  return !options.cpu && pass.number_bytes < kFp32Bytes && columns % kPack == 0;
}

std::uint64_t norm_copies_bytes(NormKind kind, std::int64_t hidden, const PassShape& pass,
                                const PeakOptions& options) {
  constexpr std::int64_t kCopies = 5;
  if (kind == NormKind::kLayer || fuses_rows(pass, options, hidden)) return 0;
  return bytes(pass.rows() * kCopies * hidden * kFp32Bytes);
}

std::uint64_t block_peak_bytes(const BlockSpec& block, const LoraRecipe& lora,
                               const PassShape& pass, const PeakOptions& options) {
  return 2 * numbers_bytes(pass, block.hidden) + BlockMemory(block, lora, pass, options).peak();
}

}  // namespace sluice::engine
