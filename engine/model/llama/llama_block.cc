#include "engine/model/llama/llama_block.h"

#include <ATen/core/LegacyTypeDispatch.h>
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
        gated_(indices_.gated, w_, adapters_),
        down_(indices_.down, w_, adapters_),
        input_(input),
        options_{
            .heads = block.heads_,
            .reach = {.window = block.window_, .documents = context.documents},
            .dropout = dropout_at(context, DropoutSite::kAttention, block.shape_.attention_dropout),
            .deterministic = context.deterministic},
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
      RmsNormed normed = rms_norm(input_, w_[indices_.norm1], shape_.epsilon);
      kept.rstd1 = std::move(normed.rstd);
      kept.qkv = qkv_.output(normed.output);
    }
    kept.attended = attend(kept.qkv);
    if (!keep) kept.qkv.reset();
    kept.middle = projection_.output(kept.attended.output);
    if (!keep) kept.attended = {};
    RmsNormed normed = add_and_rms_norm(kept.middle, input_, w_[indices_.norm2], shape_.epsilon);
    kept.rstd2 = std::move(normed.rstd);
    kept.gate_and_up = gated_.output(normed.output);
    return kept;
  }

  // Rotates queries and keys; in place, unless norms of heads come first.
  HeadViews turned(at::Tensor& qkv) const {
    const HeadShape& heads = options_.heads;
    if (!shape_.head_norms) {
      rotate(qkv, rotary());
      return HeadViews(qkv, heads);
    }
    const at::Tensor turned = norm_and_rotate(qkv, norms(), rotary());
    return HeadViews(
        split_heads(turned.narrow(-1, 0, heads.query_width()), heads.heads),
        split_heads(turned.narrow(-1, heads.query_width(), heads.key_width()), heads.kv_heads),
        HeadViews(qkv, heads).value);
  }

  Attended attend(at::Tensor& qkv) const { return attention(turned(qkv), options_); }
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
    const at::Tensor product = silu_gated(kept.gate_and_up);
    kept.gate_and_up.reset();
    return down_.output(product).add_(kept.middle);
  }

  // Returns the gradient of `middle`, the feed-forward's input.
  at::Tensor feed_forward_backward(Saved& saved, const at::Tensor& middle,
                                   const at::Tensor& grad_output, const UnitViews& g) const {
    at::Tensor gate_and_up = saved.take(kGateAndUp);
    {
      const ProductsPass::Backward down(down_, grad_output);
      at::Tensor product = down.input_gradient();
      silu_gated_backward(gate_and_up, product);  // now the gradient, and the product
      down.put(g, product, overwrites_);
    }
    const ProductsPass::Backward gated(gated_, gate_and_up);
    gated.put(g, rms_norm(middle, w_[indices_.norm2], shape_.epsilon).output, overwrites_);
    return rms_norm_backward(gated.input_gradient(), middle, saved.take(kRstd2), w_[indices_.norm2],
                             g[indices_.norm2], grad_output);
  }

  // Returns the gradient of the first norm's output.
  at::Tensor attention_branch_backward(Saved& saved, const at::Tensor& grad_middle,
                                       const UnitViews& g) const {
    at::Tensor qkv = saved.take(kQkv);
    at::Tensor gradient;
    {
      const Attended attended = {saved.take(kAttended), saved.take(kLogsumexp),
                                 saved.take(kPhiloxSeed), saved.take(kPhiloxOffset)};
      const ProductsPass::Backward projection(projection_, grad_middle);
      projection.put(g, attended.output, overwrites_);
      gradient = projection.input_gradient();
      // Without norms of heads they were saved after the rotation.
      const HeadViews heads = shape_.head_norms ? turned(qkv) : HeadViews(qkv, options_.heads);
      gradient = attention_backward(gradient, heads, attended, options_, {});
    }
    if (shape_.head_norms)
      norm_and_rotate_backward(gradient, qkv, norms(),
                               {g[indices_.query_norm], g[indices_.query_norm + 1]}, rotary());
    else
      rotate_backward(gradient, rotary());
    qkv.reset();
    const ProductsPass::Backward products(qkv_, gradient);
    products.put(g, rms_norm(input_, w_[indices_.norm1], shape_.epsilon).output, overwrites_);
    return products.input_gradient();
  }

 private:
  // The length that sets the frequencies, if all documents here share it.
  std::int64_t counted_tokens() const {
    if (place_.documents == nullptr) return place_.first + input_.size(1);
    return place_.documents->padded_tokens;
  }
  HeadNorms norms() const {
    return {.weights = {w_[indices_.query_norm], w_[indices_.query_norm + 1]},
            .epsilon = shape_.epsilon};
  }
  Rotary rotary() const {
    return {
        .heads = options_.heads, .frequencies = frequencies_, .place = place_, .of_rows = of_rows_};
  }

  const LlamaShape& shape_;
  const LlamaBlockParameters& indices_;
  const UnitViews& w_;
  const ProductsPass::Adapters adapters_;
  const ProductsPass qkv_;
  const ProductsPass projection_;
  const ProductsPass gated_;
  const ProductsPass down_;
  const at::Tensor& input_;
  AttentionOptions options_;
  RotaryStart place_;
  RotaryFrequencies frequencies_;
  at::Tensor of_rows_;
  bool overwrites_;
};

LlamaBlock::LlamaBlock(const LlamaShape& shape, const LoraRecipe& lora, std::int64_t layer)
    : ModelUnit(llama_block_layout(shape, layer)),
      shape_(shape),
      indices_(llama_block_parameters(shape, lora)),
      adapter_scale_(lora.exists() ? lora.scale() : 0),
      adapter_dropout_(lora.dropout),
      heads_{.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
      layer_(layer),
      window_(shape.window.has(layer) ? shape.window.tokens : 0),
      frequencies_(rope_frequencies(shape.rope, shape.head_dim, shape.rope.original_context)) {}

RotaryFrequencies LlamaBlock::frequencies_at(std::int64_t tokens) const {
  if (!grows_with_sequence(shape_.rope) || tokens <= shape_.rope.original_context)
    return frequencies_;
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
  return rms_norm_backward(std::move(grad_norm), input, rstd1, parameters[indices_.norm1],
                           gradients[indices_.norm1], grad_middle);
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
