#include "engine/model/block_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "engine/model/attention.h"
#include "engine/model/dropout.h"
#include "engine/model/gpt_layout.h"
#include "engine/model/kv_cache.h"
#include "engine/model/layer_norm.h"
#include "engine/model/linear.h"
#include "engine/model/plain_attention.h"

namespace sluice::engine {
namespace {

namespace p = block_parameter;

constexpr const char* kGelu = "tanh";

// Order in Saved.
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

// Everything of a forward pass but the last product and what is cheap to compute again.
struct Kept {
  Normed norm1;  // without its output
  at::Tensor qkv;
  Attended attended;
  at::Tensor middle;  // the residual stream between attention and feed-forward
  Normed norm2;
  at::Tensor fc;  // before the GELU
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

// `attend`: from packed queries, keys and values to Attended.
template <typename Attend>
Kept run(const UnitViews& w, const at::Tensor& input, const Attend& attend,
         const Dropout& dropout) {
  Kept kept;
  kept.norm1 = layer_norm(input, w[p::kNorm1Weight], w[p::kNorm1Bias]);
  kept.qkv = linear(kept.norm1.output, w[p::kAttentionWeight], w[p::kAttentionBias]);
  kept.norm1.output.reset();
  kept.attended = attend(kept.qkv);
  kept.middle = linear(kept.attended.output, w[p::kProjectionWeight], w[p::kProjectionBias]);
  drop_in_place(kept.middle, dropout);
  kept.middle.add_(input);
  kept.norm2 = layer_norm(kept.middle, w[p::kNorm2Weight], w[p::kNorm2Bias]);
  kept.fc = linear(kept.norm2.output, w[p::kFcWeight], w[p::kFcBias]);
  kept.norm2.output.reset();
  return kept;
}

auto attend_with(const AttentionOptions& options) {
  return [options](const at::Tensor& qkv) { return attention(qkv, options); };
}

AttentionOptions attention_options(const PassContext& context, std::int64_t heads,
                                   double probability) {
  return {.heads = heads,
          .dropout = dropout_at(context, DropoutSite::kAttention, probability),
          .deterministic = context.deterministic};
}

// Returns the gradient of `middle`, the feed-forward's input.
at::Tensor feed_forward_backward(const UnitViews& w, Saved& saved, const at::Tensor& middle,
                                 const at::Tensor& grad_output, const Dropout& dropout,
                                 const UnitViews& g) {
  const Normed norm = layer_norm(middle, w[p::kNorm2Weight], w[p::kNorm2Bias]);
  at::Tensor grad_fc;
  {
    const at::Tensor fc = saved.take(kFc);
    const at::Tensor grad_gelu = linear_backward(
        with_dropout(grad_output, dropout), at::gelu(fc, kGelu), w[p::kFcProjectionWeight],
        {g[p::kFcProjectionWeight], g[p::kFcProjectionBias]});
    grad_fc = at::gelu_backward(grad_gelu, fc, kGelu);
  }
  const at::Tensor grad_norm =
      linear_backward(grad_fc, norm.output, w[p::kFcWeight], {g[p::kFcWeight], g[p::kFcBias]});
  const Normed statistics = {{}, saved.take(kMean2), saved.take(kRstd2)};
  return layer_norm_backward(grad_norm, middle, statistics, w[p::kNorm2Weight], w[p::kNorm2Bias],
                             {g[p::kNorm2Weight], g[p::kNorm2Bias]})
      .add_(grad_output);
}

}  // namespace

BlockUnit::BlockUnit(const GptShape& shape, std::int64_t layer)
    : ModelUnit(gpt_block_layout(shape, layer)),
      layer_(layer),
      heads_(shape.heads),
      dropout_(shape.dropout) {}

at::Tensor BlockUnit::forward(const PassContext& context, const UnitViews& parameters,
                              const at::Tensor& input, Saved* saved) const {
  const at::NoGradGuard no_grad;
  const Kept kept =
      run(parameters, input, attend_with(attention_options(context, heads_, dropout_)),
          dropout_at(context, DropoutSite::kProjection, dropout_));
  if (saved != nullptr) saved->assign(pack(kept));
  at::Tensor output = linear(at::gelu(kept.fc, kGelu), parameters[p::kFcProjectionWeight],
                             parameters[p::kFcProjectionBias]);
  drop_in_place(output, dropout_at(context, DropoutSite::kFcProjection, dropout_));
  return output.add_(kept.middle);
}

void BlockUnit::recompute(const PassContext& context, const UnitViews& parameters,
                          const at::Tensor& input, Saved& saved) const {
  const at::NoGradGuard no_grad;
  saved.assign(
      pack(run(parameters, input, attend_with(attention_options(context, heads_, dropout_)),
               dropout_at(context, DropoutSite::kProjection, dropout_))));
}

at::Tensor BlockUnit::backward(const PassContext& context, const UnitViews& parameters,
                               const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                               const UnitViews& gradients) const {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(!saved.empty(), "unit ", layout().name,
              ": backward has nothing saved; forward saves when it is given a Saved, or call "
              "recompute()");
  const UnitViews& w = parameters;
  const UnitViews& g = gradients;
  const at::Tensor grad_middle =
      feed_forward_backward(w, saved, saved.take(kMiddle), grad_output,
                            dropout_at(context, DropoutSite::kFcProjection, dropout_), g);
  at::Tensor grad_qkv;
  {
    const Attended attended = {saved.take(kAttended), saved.take(kLogsumexp),
                               saved.take(kPhiloxSeed), saved.take(kPhiloxOffset)};
    const at::Tensor grad_attended = linear_backward(
        with_dropout(grad_middle, dropout_at(context, DropoutSite::kProjection, dropout_)),
        attended.output, w[p::kProjectionWeight], {g[p::kProjectionWeight], g[p::kProjectionBias]});
    grad_qkv = attention_backward(grad_attended, saved.take(kQkv), attended,
                                  attention_options(context, heads_, dropout_));
  }
  const at::Tensor normed = layer_norm(input, w[p::kNorm1Weight], w[p::kNorm1Bias]).output;
  const at::Tensor grad_norm = linear_backward(grad_qkv, normed, w[p::kAttentionWeight],
                                               {g[p::kAttentionWeight], g[p::kAttentionBias]});
  const Normed statistics = {{}, saved.take(kMean1), saved.take(kRstd1)};
  saved.clear();
  return layer_norm_backward(grad_norm, input, statistics, w[p::kNorm1Weight], w[p::kNorm1Bias],
                             {g[p::kNorm1Weight], g[p::kNorm1Bias]})
      .add_(grad_middle);
}

at::Tensor BlockUnit::extend(const UnitViews& parameters, const at::Tensor& input,
                             KvCache& cache) const {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(cache.length() == 0 || input.size(1) == 1, "unit ", layout().name,
              ": after the first positions come single ones, and not ", input.size(1));
  const auto attend = [&](const at::Tensor& qkv) -> Attended {
    const HeadViews heads(qkv, heads_);
    cache.put(layer_, heads.key, heads.value);
    if (cache.length() == 0) return attention(qkv, {.heads = heads_});
    const std::int64_t positions = cache.length() + 1;
    return {.output = merge_heads(at::scaled_dot_product_attention(
                heads.query, cache.keys(layer_, positions), cache.values(layer_, positions)))};
  };
  const Kept kept = run(parameters, input, attend, {});
  return linear(at::gelu(kept.fc, kGelu), parameters[p::kFcProjectionWeight],
                parameters[p::kFcProjectionBias])
      .add_(kept.middle);
}

}  // namespace sluice::engine
