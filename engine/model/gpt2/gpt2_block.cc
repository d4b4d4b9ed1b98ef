#include "engine/model/gpt2/gpt2_block.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/ops/activate.h"
#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/ops/linear.h"

namespace sluice::engine {
namespace {

// Short, because every operation names several.
const BlockParameters& p() { return gpt2_block_parameters(); }

// The order in Saved.
enum SavedTensor : std::size_t {
  kMean1,
  kRstd1,
  kQkv,
  kAttended,
  kLogsumexp,
  kPhiloxSeed,
  kPhiloxOffset,
  kMiddle,
  kMean2,
  kRstd2,
  kFc
};

// The results of a forward pass, except the last product and what is cheap to recompute.
struct Kept {
  Normed norm1;  // without its output
  at::Tensor qkv;
  Attended attended;
  at::Tensor middle;  // the residual stream between attention and feed-forward
  Normed norm2;
  at::Tensor fc;  // before the activation
};

std::vector<at::Tensor> pack(const Kept& kept) {
  const Attended& attended = kept.attended;
  return {kept.norm1.mean,
          kept.norm1.rstd,
          kept.qkv,
          attended.output,
          attended.logsumexp,
          attended.philox_seed,
          attended.philox_offset,
          kept.middle,
          kept.norm2.mean,
          kept.norm2.rstd,
          kept.fc};
}

Normed norm1(const UnitViews& w, const Gpt2Variant& variant, const at::Tensor& input) {
  return layer_norm(input, w[p().norm1.gain], w[p().norm1.bias], variant.epsilon);
}

Normed norm2(const UnitViews& w, const Gpt2Variant& variant, const at::Tensor& middle) {
  return layer_norm(middle, w[p().norm2.gain], w[p().norm2.bias], variant.epsilon);
}

// `attend`: from packed queries, keys and values to Attended. `keep`: also keeps what only backward
// needs.
template <typename Attend>
Kept run(const UnitViews& w, const Gpt2Variant& variant, const at::Tensor& input,
         const RowPieces& pieces, const Attend& attend, const Dropout& dropout, bool keep) {
  Kept kept;
  kept.norm1 = norm1(w, variant, input);
  kept.qkv = linear(kept.norm1.output, w[p().qkv.weight], w[p().qkv.bias]);
  kept.norm1.output.reset();
  kept.attended = attend(kept.qkv);
  if (!keep) kept.qkv.reset();
  kept.middle = linear(kept.attended.output, w[p().projection.weight], w[p().projection.bias]);
  if (!keep) kept.attended = {};
  if (pieces.cut()) {
    add_residual(kept.middle, input, dropout);
    return kept;
  }
  kept.norm2 = add_and_norm(kept.middle, input, dropout, w[p().norm2.gain], w[p().norm2.bias],
                            variant.epsilon);
  kept.fc = linear(kept.norm2.output, w[p().mlp_in.weight], w[p().mlp_in.bias]);
  kept.norm2.output.reset();
  return kept;
}

at::Tensor last_product_in_pieces(const UnitViews& w, const Gpt2Variant& variant,
                                  const RowPieces& pieces, const at::Tensor& middle) {
  at::Tensor output = at::empty_like(middle);
  const at::Tensor from = middle.flatten(0, 1);
  const at::Tensor to = output.flatten(0, 1);
  pieces.for_each([&](std::int64_t first, std::int64_t rows) {
    const at::Tensor activation =
        activate(linear(norm2(w, variant, from.narrow(0, first, rows)).output, w[p().mlp_in.weight],
                        w[p().mlp_in.bias]),
                 variant.activation);
    to.narrow(0, first, rows).copy_(linear(activation, w[p().mlp_out.weight], w[p().mlp_out.bias]));
  });
  return output;
}

// Frees the activation's input, unless it was saved.
at::Tensor last_product(const UnitViews& w, const Gpt2Variant& variant, const RowPieces& pieces,
                        Kept& kept) {
  if (pieces.cut()) return last_product_in_pieces(w, variant, pieces, kept.middle);
  const at::Tensor activation = activate(kept.fc, variant.activation);
  kept.fc.reset();
  return linear(activation, w[p().mlp_out.weight], w[p().mlp_out.bias]);
}

auto attend_with(const AttentionOptions& options) {
  return [options](const at::Tensor& qkv) {
    return attention(HeadViews(qkv, options.heads), options);
  };
}

// The gradients of a block's matrices, to which backward writes or adds products.
class WeightGradients {
 public:
  WeightGradients(const UnitViews& views, bool overwrite) : views_(views), overwrite_(overwrite) {}

  void put(int parameter, const at::Tensor& left, const at::Tensor& right) const {
    if (overwrite_)
      write_weight_gradient(views_[parameter], left, right);
    else
      accumulate_weight_gradient(views_[parameter], left, right);
  }
  // The vectors' gradients, which are added to.
  const at::Tensor& operator[](int parameter) const { return views_[parameter]; }
  // For the pieces of rows after the first.
  WeightGradients without_overwriting() const { return {views_, false}; }

 private:
  const UnitViews& views_;
  const bool overwrite_;
};

// The feed-forward's backward, of all rows or of a piece.
struct FeedForwardRows {
  const at::Tensor& middle;  // its input
  Normed norm2;              // without its output
  at::Tensor fc;
  const at::Tensor& grad_output;
  at::Tensor dropped;  // grad_output after dropout
};

// Returns the gradient of `middle`.
at::Tensor rows_backward(const UnitViews& w, const Gpt2Variant& variant, FeedForwardRows rows,
                         const WeightGradients& g) {
  // The middle's, after and before the activation.
  at::Tensor gradient = linear_input_gradient(rows.dropped, w[p().mlp_out.weight]);
  activate_backward(rows.fc, gradient, variant.activation, g[p().mlp_in.bias]);
  g.put(p().mlp_out.weight, rows.fc, rows.dropped);
  rows.fc.reset();
  rows.dropped.reset();
  g.put(p().mlp_in.weight, norm2(w, variant, rows.middle).output, gradient);
  gradient = linear_input_gradient(gradient, w[p().mlp_in.weight]);
  return layer_norm_backward(std::move(gradient), rows.middle, rows.norm2, w[p().norm2.gain],
                             w[p().norm2.bias], {g[p().norm2.gain], g[p().norm2.bias]},
                             rows.grad_output);
}

// Returns the gradient of `middle`, the feed-forward's input, perhaps in its memory.
at::Tensor feed_forward_backward(const UnitViews& w, const Gpt2Variant& variant, Saved& saved,
                                 const RowPieces& pieces, at::Tensor middle,
                                 const at::Tensor& grad_output, const Dropout& dropout,
                                 const WeightGradients& g) {
  at::Tensor dropped = drop_and_accumulate(grad_output, dropout, g[p().mlp_out.bias]);
  if (!pieces.cut())
    return rows_backward(w, variant,
                         {.middle = middle,
                          .norm2 = {{}, saved.take(kMean2), saved.take(kRstd2)},
                          .fc = saved.take(kFc),
                          .grad_output = grad_output,
                          .dropped = std::move(dropped)},
                         g);
  const auto rows_of = [](const at::Tensor& all, std::int64_t first, std::int64_t rows) {
    return all.flatten(0, 1).narrow(0, first, rows);
  };
  pieces.for_each([&](std::int64_t first, std::int64_t rows) {
    const at::Tensor some = rows_of(middle, first, rows);
    Normed normed = norm2(w, variant, some);
    at::Tensor fc = linear(normed.output, w[p().mlp_in.weight], w[p().mlp_in.bias]);
    normed.output.reset();
    some.copy_(rows_backward(w, variant,
                             {.middle = some,
                              .norm2 = std::move(normed),
                              .fc = std::move(fc),
                              .grad_output = rows_of(grad_output, first, rows),
                              .dropped = rows_of(dropped, first, rows)},
                             first == 0 ? g : g.without_overwriting()));
  });
  return middle;
}

// Returns the gradient of the first norm's output.
at::Tensor attention_branch_backward(const UnitViews& w, const Gpt2Variant& variant, Saved& saved,
                                     const at::Tensor& input, const at::Tensor& grad_middle,
                                     const Dropout& dropout, const AttentionOptions& options,
                                     const WeightGradients& g) {
  at::Tensor gradient;
  {
    const Attended attended = {saved.take(kAttended), saved.take(kLogsumexp),
                               saved.take(kPhiloxSeed), saved.take(kPhiloxOffset)};
    {
      const at::Tensor dropped = drop_and_accumulate(grad_middle, dropout, g[p().projection.bias]);
      g.put(p().projection.weight, attended.output, dropped);
      gradient = linear_input_gradient(dropped, w[p().projection.weight]);
    }
    gradient = attention_backward(gradient, HeadViews(saved.take(kQkv), options.heads), attended,
                                  options, g[p().qkv.bias]);
  }
  g.put(p().qkv.weight, norm1(w, variant, input).output, gradient);
  return linear_input_gradient(gradient, w[p().qkv.weight]);
}

}  // namespace

Gpt2Block::Gpt2Block(const ModelShape& shape, std::int64_t layer, std::int64_t piece_rows)
    : ModelUnit(block_layout(gpt2_spec(shape).block, layer)),
      layer_(layer),
      heads_(equal_heads(shape.heads, shape.hidden)),
      dropout_(shape.dropout),
      variant_(gpt2_variant(shape)),
      piece_rows_(piece_rows) {}

RowPieces Gpt2Block::pieces(const at::Tensor& input) const {
  return RowPieces(input.size(0) * input.size(1), piece_rows_);
}

AttentionOptions Gpt2Block::attention_options(const PassContext& context) const {
  return {.heads = heads_,
          .reach = {.documents = context.documents},
          .dropout = dropout_at(context, DropoutSite::kAttention, dropout_),
          .deterministic = context.deterministic,
          .scale = variant_.attention_scale(heads_.head_dim, layer_)};
}

at::Tensor Gpt2Block::forward(const PassContext& context, const UnitViews& parameters,
                              const at::Tensor& input, Saved* saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const RowPieces cut = pieces(input);
  Kept kept = run(parameters, variant_, input, cut, attend_with(attention_options(context)),
                  dropout_at(context, DropoutSite::kProjection, dropout_), saved != nullptr);
  if (saved != nullptr) saved->assign(pack(kept));
  at::Tensor output = last_product(parameters, variant_, cut, kept);
  add_residual(output, kept.middle, dropout_at(context, DropoutSite::kFcProjection, dropout_));
  return output;
}

void Gpt2Block::recompute(const PassContext& context, const UnitViews& parameters,
                          const at::Tensor& input, Saved& saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  saved.assign(
      pack(run(parameters, variant_, input, pieces(input), attend_with(attention_options(context)),
               dropout_at(context, DropoutSite::kProjection, dropout_), /*keep=*/true)));
}

at::Tensor Gpt2Block::backward(const PassContext& context, const UnitViews& parameters,
                               const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                               const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  TORCH_CHECK(!saved.empty(), "unit ", layout().name,
              ": backward has nothing saved; forward saves when it is given a Saved, or call "
              "recompute()");
  const UnitViews& w = parameters;
  const WeightGradients g(gradients, context.overwrites);
  const at::Tensor grad_middle =
      feed_forward_backward(w, variant_, saved, pieces(input), saved.take(kMiddle), grad_output,
                            dropout_at(context, DropoutSite::kFcProjection, dropout_), g);
  at::Tensor grad_norm = attention_branch_backward(
      w, variant_, saved, input, grad_middle,
      dropout_at(context, DropoutSite::kProjection, dropout_), attention_options(context), g);
  const Normed statistics = {{}, saved.take(kMean1), saved.take(kRstd1)};
  saved.clear();
  return layer_norm_backward(std::move(grad_norm), input, statistics, w[p().norm1.gain],
                             w[p().norm1.bias], {g[p().norm1.gain], g[p().norm1.bias]},
                             grad_middle);
}

at::Tensor Gpt2Block::extend(const UnitViews& parameters, const at::Tensor& input,
                             KvCache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const AttentionOptions options = attention_options({.training = false});
  const auto attend = [&](const at::Tensor& qkv) -> Attended {
    const HeadViews heads(qkv, heads_);
    cache.put(layer_, heads.key, heads.value);
    if (cache.length() == 0) return attention(heads, options);
    const std::int64_t positions = cache.length() + input.size(1);
    return {.output = attend_last(
                {heads.query, cache.keys(layer_, positions), cache.values(layer_, positions)},
                options)};
  };
  const RowPieces cut = pieces(input);
  Kept kept = run(parameters, variant_, input, cut, attend, {}, /*keep=*/false);
  return last_product(parameters, variant_, cut, kept).add_(kept.middle);
}

}  // namespace sluice::engine
