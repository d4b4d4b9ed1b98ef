#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "engine/model/kv_cache.h"
#include "engine/model/ops/activate.h"
#include "engine/model/ops/attention.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/ops/linear.h"
#include "engine/model/ops/output_loss.h"
#include "engine/model/ops/rms_norm.h"
#include "tests/engine/toy_family/toy_family.h"
#include "tests/engine/toy_family/toy_layout.h"

namespace sluice::engine {
namespace {

constexpr auto kOutIn = WeightOrder::kOutIn;

void put(const PassContext& context, const at::Tensor& gradient, const at::Tensor& left,
         const at::Tensor& right) {
  if (context.overwrites)
    write_weight_gradient(gradient, left, right);
  else
    accumulate_weight_gradient(gradient, left, right);
}

class ToyEmbedding final : public ModelUnit {
 public:
  using ModelUnit::ModelUnit;
  at::Tensor forward(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& input,
                     Saved* /*saved*/) const override {
    const at::NoGradGuard no_grad;
    return at::embedding(w[0], input);
  }
  void recompute(const PassContext& /*context*/, const UnitViews& /*w*/,
                 const at::Tensor& /*input*/, Saved& /*saved*/) const override {}
  at::Tensor backward(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& input,
                      Saved& /*saved*/, const at::Tensor& grad_output,
                      const UnitViews& g) const override {
    const at::NoGradGuard no_grad;
    // Row by row: slow, but in a fixed order.
    const at::Tensor ids = input.flatten().cpu();
    const at::Tensor rows = grad_output.flatten(0, 1).to(g[0].scalar_type());
    for (std::int64_t i = 0; i < ids.numel(); ++i)
      g[0].select(0, ids.const_data_ptr<std::int64_t>()[i]).add_(rows.select(0, i));
    static_cast<void>(w);
    return {};
  }
  at::Tensor extend(const UnitViews& w, const at::Tensor& input,
                    KvCache& /*cache*/) const override {
    const at::NoGradGuard no_grad;
    return at::embedding(w[0], input);
  }
};

class ToyAttention final : public ModelUnit {
 public:
  ToyAttention(UnitLayout layout, const ModelShape& shape, std::int64_t layer)
      : ModelUnit(std::move(layout)),
        heads_(equal_heads(shape.heads, shape.hidden)),
        epsilon_(toy_epsilon(shape)),
        layer_(layer) {}

  at::Tensor forward(const PassContext& context, const UnitViews& w, const at::Tensor& input,
                     Saved* saved) const override {
    const at::NoGradGuard no_grad;
    const auto [rstd, qkv, attended] = run(context, w, input);
    at::Tensor output = linear(attended.output, w[toy_attention::kProjection], {});
    output.add_(input);
    if (saved != nullptr) keep(*saved, rstd, qkv, attended);
    return output;
  }
  void recompute(const PassContext& context, const UnitViews& w, const at::Tensor& input,
                 Saved& saved) const override {
    const at::NoGradGuard no_grad;
    const auto [rstd, qkv, attended] = run(context, w, input);
    keep(saved, rstd, qkv, attended);
  }
  at::Tensor backward(const PassContext& context, const UnitViews& w, const at::Tensor& input,
                      Saved& saved, const at::Tensor& grad_output,
                      const UnitViews& g) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor rstd = saved.take(0);
    const at::Tensor qkv = saved.take(1);
    const Attended attended = {saved.take(2), saved.take(3), saved.take(4), saved.take(5)};
    saved.clear();
    put(context, g[toy_attention::kProjection], attended.output, grad_output);
    at::Tensor gradient = linear_input_gradient(grad_output, w[toy_attention::kProjection]);
    gradient = attention_backward(gradient, HeadViews(qkv, heads_), attended, options(context), {});
    const at::Tensor normed = rms_norm(input, w[toy_attention::kNorm], epsilon_).output;
    put(context, g[toy_attention::kQkv], normed, gradient);
    gradient = linear_input_gradient(gradient, w[toy_attention::kQkv]);
    return rms_norm_backward(gradient, input, rstd, w[toy_attention::kNorm],
                             g[toy_attention::kNorm], grad_output);
  }
  at::Tensor extend(const UnitViews& w, const at::Tensor& input, KvCache& cache) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor normed = rms_norm(input, w[toy_attention::kNorm], epsilon_).output;
    const at::Tensor qkv = linear(normed, w[toy_attention::kQkv], {});
    const HeadViews heads(qkv, heads_);
    cache.put(layer_, heads.key, heads.value);
    const std::int64_t positions = cache.length() + input.size(1);
    const at::Tensor attended =
        attend_last({heads.query, cache.keys(layer_, positions), cache.values(layer_, positions)},
                    {.heads = heads_});
    return linear(attended, w[toy_attention::kProjection], {}).add_(input);
  }

 private:
  struct Run {
    at::Tensor rstd;
    at::Tensor qkv;
    Attended attended;
  };
  AttentionOptions options(const PassContext& context) const {
    return {.heads = heads_, .deterministic = context.deterministic};
  }
  Run run(const PassContext& context, const UnitViews& w, const at::Tensor& input) const {
    RmsNormed normed = rms_norm(input, w[toy_attention::kNorm], epsilon_);
    at::Tensor qkv = linear(normed.output, w[toy_attention::kQkv], {});
    Attended attended = attention(HeadViews(qkv, heads_), options(context));
    return {std::move(normed.rstd), std::move(qkv), std::move(attended)};
  }
  static void keep(Saved& saved, const at::Tensor& rstd, const at::Tensor& qkv,
                   const Attended& attended) {
    saved.assign({rstd, qkv, attended.output, attended.logsumexp, attended.philox_seed,
                  attended.philox_offset});
  }

  HeadShape heads_;
  double epsilon_;
  std::int64_t layer_;
};

class ToyFeedForward final : public ModelUnit {
 public:
  ToyFeedForward(UnitLayout layout, const ModelShape& shape)
      : ModelUnit(std::move(layout)), epsilon_(toy_epsilon(shape)) {}

  at::Tensor forward(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& input,
                     Saved* saved) const override {
    const at::NoGradGuard no_grad;
    const RmsNormed normed = rms_norm(input, w[toy_feed_forward::kNorm], epsilon_);
    const at::Tensor up = linear(normed.output, w[toy_feed_forward::kUp], {}, kOutIn);
    if (saved != nullptr) saved->assign({normed.rstd, up});
    return linear(activate(up, Activation::kGeluTanh), w[toy_feed_forward::kDown], {}, kOutIn)
        .add_(input);
  }
  void recompute(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& input,
                 Saved& saved) const override {
    const at::NoGradGuard no_grad;
    const RmsNormed normed = rms_norm(input, w[toy_feed_forward::kNorm], epsilon_);
    saved.assign({normed.rstd, linear(normed.output, w[toy_feed_forward::kUp], {}, kOutIn)});
  }
  at::Tensor backward(const PassContext& context, const UnitViews& w, const at::Tensor& input,
                      Saved& saved, const at::Tensor& grad_output,
                      const UnitViews& g) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor rstd = saved.take(0);
    at::Tensor inner = saved.take(1);
    saved.clear();
    at::Tensor gradient = linear_input_gradient(grad_output, w[toy_feed_forward::kDown], kOutIn);
    activate_backward(inner, gradient, Activation::kGeluTanh, {});
    put(context, g[toy_feed_forward::kDown], grad_output, inner);
    const at::Tensor normed = rms_norm(input, w[toy_feed_forward::kNorm], epsilon_).output;
    put(context, g[toy_feed_forward::kUp], gradient, normed);
    gradient = linear_input_gradient(gradient, w[toy_feed_forward::kUp], kOutIn);
    return rms_norm_backward(gradient, input, rstd, w[toy_feed_forward::kNorm],
                             g[toy_feed_forward::kNorm], grad_output);
  }
  at::Tensor extend(const UnitViews& w, const at::Tensor& input,
                    KvCache& /*cache*/) const override {
    return forward({}, w, input, nullptr);
  }

 private:
  double epsilon_;
};

class ToyHead final : public HeadUnit {
 public:
  explicit ToyHead(const ModelShape& shape) : vocab_(shape.vocab), epsilon_(toy_epsilon(shape)) {}

  Loss loss_and_gradient(const UnitViews& w, const at::Tensor& input, const at::Tensor& targets,
                         double grad_scale, const UnitViews& g) const override {
    const at::NoGradGuard no_grad;
    const RmsNormed normed = rms_norm(input, w[toy_head::kNorm], epsilon_);
    at::Tensor logits = rows(normed.output, w);
    at::Tensor sum = cross_entropy_in_place(logits, targets.flatten(),
                                            {.vocab = vocab_, .grad_scale = grad_scale})
                         .sum(at::kDouble);
    accumulate_weight_gradient(g[toy_head::kOutput], logits, normed.output.flatten(0, 1));
    const at::Tensor gradient = at::mm(logits, w[toy_head::kOutput]).view(input.sizes());
    return {std::move(sum), rms_norm_backward(gradient, input, normed.rstd, w[toy_head::kNorm],
                                              g[toy_head::kNorm], {})};
  }
  at::Tensor loss_sum(const UnitViews& w, const at::Tensor& input,
                      const at::Tensor& targets) const override {
    const at::NoGradGuard no_grad;
    at::Tensor logits = rows(rms_norm(input, w[toy_head::kNorm], epsilon_).output, w);
    return cross_entropy_in_place(logits, targets.flatten(), {.vocab = vocab_, .gradient = false})
        .sum(at::kDouble);
  }
  at::Tensor token_losses(const UnitViews& w, const at::Tensor& input,
                          const at::Tensor& targets) const override {
    const at::NoGradGuard no_grad;
    at::Tensor logits = rows(rms_norm(input, w[toy_head::kNorm], epsilon_).output, w);
    return cross_entropy_in_place(logits, targets.flatten(), {.vocab = vocab_, .gradient = false})
        .view(targets.sizes());
  }
  at::Tensor logits(const UnitViews& w, const at::Tensor& input,
                    std::int64_t positions) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor last = input.narrow(1, input.size(1) - positions, positions).contiguous();
    return rows(rms_norm(last, w[toy_head::kNorm], epsilon_).output, w)
        .reshape({input.size(0), positions, vocab_});
  }

 private:
  static at::Tensor rows(const at::Tensor& normed, const UnitViews& w) {
    return at::mm(normed.flatten(0, 1), w[toy_head::kOutput].t());
  }

  std::int64_t vocab_;
  double epsilon_;
};

}  // namespace

ModelUnits make_toy_units(const ModelOptions& options) {
  const ModelLayout layout = toy_layout(options);
  ModelUnits units;
  units.body.push_back(std::make_unique<ToyEmbedding>(layout.layout(0)));
  for (std::int64_t layer = 0; layer < options.shape.layers; ++layer) {
    const UnitLayout& of_unit = layout.layout(static_cast<int>(layer) + 1);
    if (toy_attends(layer))
      units.body.push_back(std::make_unique<ToyAttention>(of_unit, options.shape, layer));
    else
      units.body.push_back(std::make_unique<ToyFeedForward>(of_unit, options.shape));
  }
  units.head = std::make_unique<ToyHead>(options.shape);
  return units;
}

}  // namespace sluice::engine
