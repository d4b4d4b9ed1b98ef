#include "engine/model/llama/llama_block.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/model/kv_cache.h"
#include "engine/model/llama/llama_products.h"
#include "engine/model/llama/rope_frequencies.h"
#include "engine/model/ops/activate.h"
#include "engine/model/ops/attention.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/rms_norm.h"
#include "engine/model/ops/rotary.h"

namespace sluice::engine {
namespace {

// The order in Saved.
enum SavedTensor : std::size_t {
  kRstd1,
  kQkv,
  kAttended,
  kLogsumexp,
  kPhiloxSeed,
  kPhiloxOffset,
  kMiddle,
  kRstd2,
  kGateAndUp
};

}  // namespace

// One call of the block, with its arguments.
class LlamaBlock::Pass {
 public:
  // `first`: the position of the input's first token.
  Pass(const LlamaBlock& block, const PassContext& context, const UnitViews& parameters,
       const at::Tensor& input, std::int64_t first = 0)
      : shape_(block.shape_),
        indices_(block.indices_),
        w_(parameters),
        adapters_{.scale = block.adapter_scale_,
                  .dropout = dropout_at(context, DropoutSite::kAdapter, block.adapter_dropout_)},
        qkv_(indices_.qkv, w_, adapters_),
        projection_(indices_.projection, w_, adapters_),
        input_(input),
        pieces_(input.size(0) * input.size(1), shape_.piece_rows),
        options_{
            .heads = block.heads_,
            .reach = {.window = block.window_, .documents = context.documents},
            .dropout = dropout_at(context, DropoutSite::kAttention, block.shape_.attention_dropout),
            .deterministic = context.deterministic},
        parts_(attention_parts(shape_, pieces_)),
        place_{.first = first, .documents = context.documents},
        frequencies_(block.frequencies_at(counted_tokens())),
        of_rows_(block.frequencies_of(context.documents, input.device())),
        overwrites_(context.overwrites) {}

  // The results of a forward pass, except the last product and what is cheap to recompute.
  struct Kept {
    at::Tensor rstd1;
    at::Tensor qkv;
    Attended attended;
    at::Tensor middle;
    at::Tensor rstd2;
    at::Tensor gate_and_up;

    std::vector<at::Tensor> packed() const {
      return {rstd1,
              qkv,
              attended.output,
              attended.logsumexp,
              attended.philox_seed,
              attended.philox_offset,
              middle,
              rstd2,
              gate_and_up};
    }
  };

  // `attend`: from packed queries, keys and values to Attended. `keep`: also keeps what only
  // backward needs.
  template <typename Attend>
  Kept run(const Attend& attend, bool keep) const {
    Kept kept;
    {
      RmsNormed normed = rms_norm(input_, w_[indices_.norm1.gain], shape_.epsilon);
      kept.rstd1 = std::move(normed.rstd);
      kept.qkv = qkv_.output(normed.output);
    }
    kept.attended = attend(kept.qkv);
    if (!keep) kept.qkv.reset();
    kept.middle = projection_.output(kept.attended.output);
    if (!keep) kept.attended = {};
    if (pieces_.cut()) {
      kept.middle.add_(input_);
      return kept;
    }
    RmsNormed normed =
        add_and_rms_norm(kept.middle, input_, w_[indices_.norm2.gain], shape_.epsilon);
    kept.rstd2 = std::move(normed.rstd);
    kept.gate_and_up = gated_from(0).output(normed.output);
    return kept;
  }

  // Rotates queries and keys; in place, unless norms of heads come first.
  HeadViews turned(at::Tensor& qkv) const {
    if (!shape_.head_norms) rotate(qkv, rotary(options_.heads));
    return turned_heads(qkv, options_.heads);
  }

  Attended attend(at::Tensor& qkv) const {
    if (parts_ > 1) return attend_in_parts(qkv);
    return attention(turned(qkv), options_);
  }
  // Attends to the positions in the cache, and appends those of the input to it.
  Attended attend_cached(at::Tensor& qkv, KvCache& cache, std::int64_t layer) const {
    const HeadViews heads = turned(qkv);
    cache.put(layer, heads.key, heads.value);
    if (cache.length() == 0) return attention(heads, options_);
    const std::int64_t positions = cache.length() + input_.size(1);
    return {
        .output = attend_last(
            {heads.query, cache.keys(layer, positions), cache.values(layer, positions)}, options_)};
  }

  // Frees the gate's input, unless it was saved.
  at::Tensor output(Kept& kept) const {
    if (pieces_.cut()) return output_in_pieces(kept.middle);
    const at::Tensor product = silu_gated(kept.gate_and_up);
    kept.gate_and_up.reset();
    return down_from(0).output(product).add_(kept.middle);
  }

  // Returns the gradient of `middle`, the feed-forward's input, perhaps in its memory.
  at::Tensor feed_forward_backward(Saved& saved, at::Tensor middle, const at::Tensor& grad_output,
                                   const UnitViews& g) const {
    if (pieces_.cut()) {
      backward_in_pieces(middle, grad_output, g);
      return middle;
    }
    at::Tensor gate_and_up = saved.take(kGateAndUp);
    return feed_forward_backward({.middle = middle, .grad_output = grad_output, .first = 0},
                                 gate_and_up, saved.take(kRstd2), g);
  }

  // Returns the gradient of the first norm's output.
  at::Tensor attention_branch_backward(Saved& saved, const at::Tensor& grad_middle,
                                       const UnitViews& g) const {
    at::Tensor qkv = saved.take(kQkv);
    if (parts_ > 1)
      backward_in_parts(saved, qkv, grad_middle, g);
    else
      qkv = whole_backward(saved, qkv, grad_middle, g);
    if (!shape_.head_norms) rotate_backward(qkv, rotary(options_.heads));
    const ProductsPass::Backward products(qkv_, qkv);  // now its gradient
    products.put(g, rms_norm(input_, w_[indices_.norm1.gain], shape_.epsilon).output, overwrites_);
    return products.input_gradient();
  }

 private:
  // Rows of the feed-forward: all, or a piece.
  struct Rows {
    const at::Tensor& middle;
    const at::Tensor& grad_output;
    std::int64_t first;
  };

  ProductsPass gated_from(std::int64_t first_row) const {
    return {indices_.mlp_in, w_, adapters_from(first_row)};
  }
  ProductsPass down_from(std::int64_t first_row) const {
    return {indices_.mlp_out, w_, adapters_from(first_row)};
  }
  ProductsPass::Adapters adapters_from(std::int64_t first_row) const {
    return {.scale = adapters_.scale, .dropout = adapters_.dropout, .first_row = first_row};
  }
  RmsNormed second_norm(const at::Tensor& middle) const {
    return rms_norm(middle, w_[indices_.norm2.gain], shape_.epsilon);
  }

  // Overwrites gate_and_up.
  at::Tensor feed_forward_backward(const Rows& rows, at::Tensor& gate_and_up,
                                   const at::Tensor& rstd2, const UnitViews& g) const {
    const bool overwrites = overwrites_ && rows.first == 0;
    {
      const ProductsPass products = down_from(rows.first);
      const ProductsPass::Backward down(products, rows.grad_output);
      at::Tensor product = down.input_gradient();
      silu_gated_backward(gate_and_up, product);  // now the gradient, and the product
      down.put(g, product, overwrites);
    }
    const ProductsPass products = gated_from(rows.first);
    const ProductsPass::Backward gated(products, gate_and_up);
    gated.put(g, second_norm(rows.middle).output, overwrites);
    return rms_norm_backward(gated.input_gradient(), rows.middle, rstd2, w_[indices_.norm2.gain],
                             g[indices_.norm2.gain], rows.grad_output);
  }

  at::Tensor output_in_pieces(const at::Tensor& middle) const {
    at::Tensor output = at::empty_like(middle);
    const at::Tensor from = middle.flatten(0, 1);
    const at::Tensor to = output.flatten(0, 1);
    pieces_.for_each([&](std::int64_t first, std::int64_t rows) {
      const at::Tensor some = from.narrow(0, first, rows);
      const at::Tensor product = silu_gated(gated_from(first).output(second_norm(some).output));
      to.narrow(0, first, rows).copy_(down_from(first).output(product).add_(some));
    });
    return output;
  }

  // Replaces `middle` by its gradient.
  void backward_in_pieces(const at::Tensor& middle, const at::Tensor& grad_output,
                          const UnitViews& g) const {
    const at::Tensor all = middle.flatten(0, 1);
    const at::Tensor gradients = grad_output.flatten(0, 1);
    pieces_.for_each([&](std::int64_t first, std::int64_t rows) {
      const at::Tensor some = all.narrow(0, first, rows);
      at::Tensor rstd2;
      at::Tensor gate_and_up;
      {
        RmsNormed normed = second_norm(some);
        rstd2 = std::move(normed.rstd);
        gate_and_up = gated_from(first).output(normed.output);
      }
      some.copy_(feed_forward_backward(
          {.middle = some, .grad_output = gradients.narrow(0, first, rows), .first = first},
          gate_and_up, rstd2, g));
    });
  }

  // ---- attention

  // Returns the gradient of `qkv`; without norms of heads, that of the rotated ones.
  at::Tensor whole_backward(Saved& saved, const at::Tensor& qkv, const at::Tensor& grad_middle,
                            const UnitViews& g) const {
    at::Tensor gradient;
    {
      const Attended attended = {saved.take(kAttended), saved.take(kLogsumexp),
                                 saved.take(kPhiloxSeed), saved.take(kPhiloxOffset)};
      const ProductsPass::Backward projection(projection_, grad_middle);
      projection.put(g, attended.output, overwrites_);
      gradient = projection.input_gradient();
      gradient =
          attention_backward(gradient, turned_heads(qkv, options_.heads), attended, options_, {});
    }
    if (shape_.head_norms) norm_heads_backward(gradient, qkv, options_.heads, g);
    return gradient;
  }

  static std::int64_t attention_parts(const LlamaShape& shape, const RowPieces& pieces) {
    return pieces.cut() && shape.attention_dropout == 0 ? head_parts(shape.kv_heads) : 1;
  }

  template <typename Visit>
  void for_each_part(const Visit& visit) const {
    AttentionOptions options = options_;
    for (std::int64_t index = 0; index < parts_; ++index) {
      const HeadPart part(options_.heads, parts_, index);
      options.heads = part.shape();
      visit(index, part, options);
    }
  }

  Attended attend_in_parts(at::Tensor& qkv) const {
    if (!shape_.head_norms) rotate(qkv, rotary(options_.heads));
    Attended all = {.output = at::empty({qkv.size(0), qkv.size(1), options_.heads.query_width()},
                                        qkv.options())};
    std::vector<at::Tensor> sums;
    for_each_part(
        [&](std::int64_t /*index*/, const HeadPart& part, const AttentionOptions& options) {
          Attended some = attention(turned_heads(part.packed(qkv), part.shape()), options);
          part.queries(all.output).copy_(some.output);
          sums.push_back(std::move(some.logsumexp));
          // Nothing is drawn from these, but the kernels take them.
          all.philox_seed = std::move(some.philox_seed);
          all.philox_offset = std::move(some.philox_offset);
        });
    if (sums.front().defined()) all.logsumexp = at::stack(sums);
    return all;
  }

  // The same, but replaces `qkv` by it.
  void backward_in_parts(Saved& saved, at::Tensor& qkv, const at::Tensor& grad_middle,
                         const UnitViews& g) const {
    const at::Tensor output = saved.take(kAttended);
    const at::Tensor sums = saved.take(kLogsumexp);
    const at::Tensor seed = saved.take(kPhiloxSeed);
    const at::Tensor offset = saved.take(kPhiloxOffset);
    const ProductsPass::Backward projection(projection_, grad_middle);
    projection.put(g, output, overwrites_);
    const at::Tensor grad_output = projection.input_gradient();
    for_each_part([&](std::int64_t index, const HeadPart& part, const AttentionOptions& options) {
      const at::Tensor packed = part.packed(qkv);
      const Attended some = {.output = part.queries(output).contiguous(),
                             .logsumexp = sums.defined() ? sums.select(0, index) : sums,
                             .philox_seed = seed,
                             .philox_offset = offset};
      at::Tensor gradient =
          attention_backward(part.queries(grad_output).contiguous(),
                             turned_heads(packed, part.shape()), some, options, {});
      if (shape_.head_norms) norm_heads_backward(gradient, packed, part.shape(), g);
      part.put(gradient, qkv);
    });
  }

  // The heads of packed rows; without norms of heads these are already rotated.
  HeadViews turned_heads(const at::Tensor& packed, const HeadShape& heads) const {
    if (!shape_.head_norms) return HeadViews(packed, heads);
    const at::Tensor turned = norm_and_rotate(packed, norms(), rotary(heads));
    return HeadViews(
        split_heads(turned.narrow(-1, 0, heads.query_width()), heads.heads),
        split_heads(turned.narrow(-1, heads.query_width(), heads.key_width()), heads.kv_heads),
        HeadViews(packed, heads).value);
  }
  void norm_heads_backward(at::Tensor& gradient, const at::Tensor& packed, const HeadShape& heads,
                           const UnitViews& g) const {
    norm_and_rotate_backward(gradient, packed, norms(),
                             {g[indices_.query_norm], g[indices_.query_norm + 1]}, rotary(heads));
  }

  // The length that sets the frequencies, if all documents here share it.
  std::int64_t counted_tokens() const {
    if (place_.documents == nullptr) return place_.first + input_.size(1);
    return place_.documents->padded_tokens;
  }
  HeadNorms norms() const {
    return {.weights = {w_[indices_.query_norm], w_[indices_.query_norm + 1]},
            .epsilon = shape_.epsilon};
  }
  Rotary rotary(const HeadShape& heads) const {
    return {.heads = heads, .frequencies = frequencies_, .place = place_, .of_rows = of_rows_};
  }

  const LlamaShape& shape_;
  const BlockParameters& indices_;
  const UnitViews& w_;
  const ProductsPass::Adapters adapters_;
  const ProductsPass qkv_;
  const ProductsPass projection_;
  const at::Tensor& input_;
  const RowPieces pieces_;
  AttentionOptions options_;
  std::int64_t parts_;  // of attention
  RotaryStart place_;
  RotaryFrequencies frequencies_;
  at::Tensor of_rows_;
  bool overwrites_;
};

LlamaBlock::LlamaBlock(const LlamaShape& shape, const LoraRecipe& lora, std::int64_t layer)
    : ModelUnit(block_layout(llama_spec(shape).block, layer)),
      shape_(shape),
      indices_(block_parameters(llama_spec(shape).block, lora)),
      adapter_scale_(lora.exists() ? lora.scale() : 0),
      adapter_dropout_(lora.dropout),
      heads_{.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
      layer_(layer),
      window_(shape.window.has(layer) ? shape.window.tokens : 0),
      frequencies_(rope_frequencies(shape.rope, shape.head_dim, shape.rope.original_context)) {}

bool LlamaBlock::keys_depend_on_length(std::int64_t tokens) const {
  return grows_with_sequence(shape_.rope) && tokens > shape_.rope.original_context;
}

RotaryFrequencies LlamaBlock::frequencies_at(std::int64_t tokens) const {
  if (!keys_depend_on_length(tokens)) return frequencies_;
  return rope_frequencies(shape_.rope, shape_.head_dim, tokens);
}

at::Tensor LlamaBlock::frequencies_of(const Documents* documents, at::Device device) const {
  if (documents == nullptr || !grows_with_sequence(shape_.rope)) return {};
  const std::vector<std::int64_t>& lengths = documents->lengths;
  const auto grows = [&](std::int64_t tokens) { return tokens > shape_.rope.original_context; };
  if (std::none_of(lengths.begin(), lengths.end(), grows)) return {};
  std::vector<float> of_documents;
  for (const std::int64_t tokens : lengths) {
    const std::vector<float> of_pair = frequencies_at(tokens).of_pair;
    of_documents.insert(of_documents.end(), of_pair.begin(), of_pair.end());
  }
  const auto documents_count = static_cast<std::int64_t>(lengths.size());
  return at::tensor(of_documents, at::kFloat)
      .view({documents_count, -1})
      .to(device)
      .repeat_interleave(at::tensor(lengths, at::kLong).to(device), 0,
                         documents->positions.numel());
}

at::Tensor LlamaBlock::forward(const PassContext& context, const UnitViews& parameters,
                               const at::Tensor& input, Saved* saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Pass pass(*this, context, parameters, input);
  Pass::Kept kept = pass.run([&](at::Tensor& qkv) { return pass.attend(qkv); }, saved != nullptr);
  if (saved != nullptr) saved->assign(kept.packed());
  return pass.output(kept);
}

void LlamaBlock::recompute(const PassContext& context, const UnitViews& parameters,
                           const at::Tensor& input, Saved& saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Pass pass(*this, context, parameters, input);
  saved.assign(pass.run([&](at::Tensor& qkv) { return pass.attend(qkv); }, /*keep=*/true).packed());
}

at::Tensor LlamaBlock::backward(const PassContext& context, const UnitViews& parameters,
                                const at::Tensor& input, Saved& saved,
                                const at::Tensor& grad_output, const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  TORCH_CHECK(!saved.empty(), "unit ", layout().name,
              ": backward has nothing saved; forward saves when it is given a Saved, or call "
              "recompute()");
  const Pass pass(*this, context, parameters, input);
  const at::Tensor grad_middle =
      pass.feed_forward_backward(saved, saved.take(kMiddle), grad_output, gradients);
  at::Tensor grad_norm = pass.attention_branch_backward(saved, grad_middle, gradients);
  const at::Tensor rstd1 = saved.take(kRstd1);
  saved.clear();
  return rms_norm_backward(std::move(grad_norm), input, rstd1, parameters[indices_.norm1.gain],
                           gradients[indices_.norm1.gain], grad_middle);
}

at::Tensor LlamaBlock::extend(const UnitViews& parameters, const at::Tensor& input,
                              KvCache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Pass pass(*this, {.training = false}, parameters, input, cache.length());
  Pass::Kept kept = pass.run(
      [&](at::Tensor& qkv) { return pass.attend_cached(qkv, cache, layer_); }, /*keep=*/false);
  return pass.output(kept);
}

}  // namespace sluice::engine
