#include "engine/model/gpt2/gpt2_block.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/ops/activate.h"
#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/ops/linear.h"

namespace sluice::engine {
namespace {

namespace p = block_parameter;

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
  return layer_norm(input, w[p::kNorm1Weight], w[p::kNorm1Bias], variant.epsilon);
}

Normed norm2(const UnitViews& w, const Gpt2Variant& variant, const at::Tensor& middle) {
  return layer_norm(middle, w[p::kNorm2Weight], w[p::kNorm2Bias], variant.epsilon);
}

// `attend`: from packed queries, keys and values to Attended. `keep`: also keeps what only backward
// needs.
template <typename Attend>
Kept run(const UnitViews& w, const Gpt2Variant& variant, const at::Tensor& input,
         const Attend& attend, const Dropout& dropout, bool keep) {
  Kept kept;
  kept.norm1 = norm1(w, variant, input);
  kept.qkv = linear(kept.norm1.output, w[p::kAttentionWeight], w[p::kAttentionBias]);
  kept.norm1.output.reset();
  kept.attended = attend(kept.qkv);
  if (!keep) kept.qkv.reset();
  kept.middle = linear(kept.attended.output, w[p::kProjectionWeight], w[p::kProjectionBias]);
  if (!keep) kept.attended = {};
  kept.norm2 = add_and_norm(kept.middle, input, dropout, w[p::kNorm2Weight], w[p::kNorm2Bias],
                            variant.epsilon);
  kept.fc = linear(kept.norm2.output, w[p::kFcWeight], w[p::kFcBias]);
  kept.norm2.output.reset();
  return kept;
}

// Frees the activation's input, unless it was saved.
at::Tensor last_product(const UnitViews& w, const Gpt2Variant& variant, Kept& kept) {
  const at::Tensor activation = activate(kept.fc, variant.activation);
  kept.fc.reset();
  return linear(activation, w[p::kFcProjectionWeight], w[p::kFcProjectionBias]);
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

 private:
  const UnitViews& views_;
  const bool overwrite_;
};

// Returns the gradient of `middle`, the feed-forward's input.
at::Tensor feed_forward_backward(const UnitViews& w, const Gpt2Variant& variant, Saved& saved,
                                 const at::Tensor& middle, const at::Tensor& grad_output,
                                 const Dropout& dropout, const WeightGradients& g) {
  at::Tensor gradient;  // of the feed-forward's middle, before and after the activation
  {
    const at::Tensor dropped = drop_and_accumulate(grad_output, dropout, g[p::kFcProjectionBias]);
    at::Tensor activation = saved.take(kFc);
    gradient = linear_input_gradient(dropped, w[p::kFcProjectionWeight]);
    activate_backward(activation, gradient, variant.activation, g[p::kFcBias]);
    g.put(p::kFcProjectionWeight, activation, dropped);
  }
  g.put(p::kFcWeight, norm2(w, variant, middle).output, gradient);
  gradient = linear_input_gradient(gradient, w[p::kFcWeight]);
  const Normed statistics = {{}, saved.take(kMean2), saved.take(kRstd2)};
  return layer_norm_backward(std::move(gradient), middle, statistics, w[p::kNorm2Weight],
                             w[p::kNorm2Bias], {g[p::kNorm2Weight], g[p::kNorm2Bias]}, grad_output);
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
      const at::Tensor dropped = drop_and_accumulate(grad_middle, dropout, g[p::kProjectionBias]);
      g.put(p::kProjectionWeight, attended.output, dropped);
      gradient = linear_input_gradient(dropped, w[p::kProjectionWeight]);
    }
    gradient = attention_backward(gradient, HeadViews(saved.take(kQkv), options.heads), attended,
                                  options, g[p::kAttentionBias]);
  }
  g.put(p::kAttentionWeight, norm1(w, variant, input).output, gradient);
  return linear_input_gradient(gradient, w[p::kAttentionWeight]);
}

}  // namespace

Gpt2Block::Gpt2Block(const ModelShape& shape, std::int64_t layer)
    : ModelUnit(gpt2_block_layout(shape, layer)),
      layer_(layer),
      heads_(equal_heads(shape.heads, shape.hidden)),
      dropout_(shape.dropout),
      variant_(gpt2_variant(shape)) {}

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
  Kept kept = run(parameters, variant_, input, attend_with(attention_options(context)),
                  dropout_at(context, DropoutSite::kProjection, dropout_), saved != nullptr);
  if (saved != nullptr) saved->assign(pack(kept));
  at::Tensor output = last_product(parameters, variant_, kept);
  add_residual(output, kept.middle, dropout_at(context, DropoutSite::kFcProjection, dropout_));
  return output;
}

void Gpt2Block::recompute(const PassContext& context, const UnitViews& parameters,
                          const at::Tensor& input, Saved& saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  saved.assign(pack(run(parameters, variant_, input, attend_with(attention_options(context)),
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
      feed_forward_backward(w, variant_, saved, saved.take(kMiddle), grad_output,
                            dropout_at(context, DropoutSite::kFcProjection, dropout_), g);
  at::Tensor grad_norm = attention_branch_backward(
      w, variant_, saved, input, grad_middle,
      dropout_at(context, DropoutSite::kProjection, dropout_), attention_options(context), g);
  const Normed statistics = {{}, saved.take(kMean1), saved.take(kRstd1)};
  saved.clear();
  return layer_norm_backward(std::move(grad_norm), input, statistics, w[p::kNorm1Weight],
                             w[p::kNorm1Bias], {g[p::kNorm1Weight], g[p::kNorm1Bias]}, grad_middle);
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
  Kept kept = run(parameters, variant_, input, attend, {}, /*keep=*/false);
  return last_product(parameters, variant_, kept).add_(kept.middle);
}

}  // namespace sluice::engine
