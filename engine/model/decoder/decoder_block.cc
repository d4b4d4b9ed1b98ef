#include "engine/model/decoder/decoder_block.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>
#include <vector>

#include "aio/check.h"
#include "engine/model/decoder/attention_pass.h"
#include "engine/model/decoder/delta_pass.h"
#include "engine/model/decoder/feed_forward_pass.h"
#include "engine/model/kv_cache.h"

namespace sluice::engine {
namespace {

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
  kInner,
  kRouterLogits,  // with experts
  kGateAndUp,
  kOutputGate,
  kBranch,
  kBranchRstd,
  kSharedLogit
};

// The results of a forward pass, except the last product and what is cheap to recompute.
struct Kept {
  AttentionPass::Kept attention;
  at::Tensor middle;  // the residual stream between the branches
  FeedForwardPass::Kept feed_forward;
};

std::vector<at::Tensor> pack(const Kept& kept) {
  const Attended& attended = kept.attention.attended;
  return {kept.attention.norm.mean,
          kept.attention.norm.rstd,
          kept.attention.qkv,
          attended.output,
          attended.logsumexp,
          attended.philox_seed,
          attended.philox_offset,
          kept.middle,
          kept.feed_forward.norm.mean,
          kept.feed_forward.norm.rstd,
          kept.feed_forward.inner,
          kept.feed_forward.experts.logits,
          kept.feed_forward.experts.gate_and_up,
          kept.attention.gate,
          kept.attention.branch,
          kept.attention.branch_rstd,
          kept.feed_forward.shared_logit};
}

Kept take(Saved& saved) {
  Kept kept = {.attention = {.norm = {{}, saved.take(kMean1), saved.take(kRstd1)},
                             .qkv = saved.take(kQkv),
                             .gate = saved.take(kOutputGate),
                             .attended = {saved.take(kAttended), saved.take(kLogsumexp),
                                          saved.take(kPhiloxSeed), saved.take(kPhiloxOffset)},
                             .branch = saved.take(kBranch),
                             .branch_rstd = saved.take(kBranchRstd)},
               .middle = saved.take(kMiddle),
               .feed_forward = {.norm = {{}, saved.take(kMean2), saved.take(kRstd2)},
                                .inner = saved.take(kInner),
                                .experts = {.logits = saved.take(kRouterLogits),
                                            .gate_and_up = saved.take(kGateAndUp)},
                                .shared_logit = saved.take(kSharedLogit)}};
  saved.clear();
  return kept;
}

Kept run(const BlockPass& pass, const BlockRotary& rotary, const at::Tensor& input,
         std::int64_t layer, bool keep) {
  Kept kept;
  kept.middle = pass.spec.delta.exists()
                    ? DeltaPass(pass, input, layer).forward(kept.attention, keep)
                    : AttentionPass(pass, rotary, input, layer).forward(kept.attention, keep);
  if (!keep) kept.attention = {};
  kept.feed_forward = FeedForwardPass(pass).begin(kept.middle, input);
  return kept;
}

}  // namespace

DecoderBlock::DecoderBlock(const BlockSpec& spec, const LoraRecipe& lora, std::int64_t layer)
    : ModelUnit(block_layout(spec, layer)),
      spec_(spec),
      places_(block_parameters(spec, lora)),
      adapter_scale_(lora.exists() ? lora.scale() : 0),
      adapter_dropout_(lora.dropout),
      layer_(layer),
      rotary_(spec.attention.rope, spec.attention.head_dim) {
  SLUICE_CHECK(rotary_.exists() || !spec.attention.head_norms,
               "norms of heads are computed together with the rotation");
  SLUICE_CHECK(!spec.norms_branches() || (spec.mlp.gated && !spec.delta.exists()),
               "branches with norms are attention and a gated feed-forward");
}

bool DecoderBlock::keys_depend_on_length(std::int64_t tokens) const {
  return rotary_.keys_depend_on_length(tokens);
}

std::int64_t DecoderBlock::keys_change_beyond() const { return rotary_.keys_change_beyond(); }

BlockPass DecoderBlock::pass(const PassContext& context, const UnitViews& parameters,
                             const at::Tensor& input) const {
  return {.spec = spec_,
          .places = places_,
          .w = parameters,
          .context = context,
          .adapters = {.scale = adapter_scale_,
                       .dropout = dropout_at(context, DropoutSite::kAdapter, adapter_dropout_)},
          .pieces = RowPieces(input.size(0) * input.size(1), spec_.piece_rows)};
}

at::Tensor DecoderBlock::forward(const PassContext& context, const UnitViews& parameters,
                                 const at::Tensor& input, Saved* saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const BlockPass here = pass(context, parameters, input);
  Kept kept = run(here, rotary_, input, layer_, saved != nullptr);
  if (saved != nullptr) saved->assign(pack(kept));
  return FeedForwardPass(here).finish(std::move(kept.feed_forward), kept.middle);
}

void DecoderBlock::recompute(const PassContext& context, const UnitViews& parameters,
                             const at::Tensor& input, Saved& saved) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const BlockPass here = pass(context, parameters, input);
  saved.assign(pack(run(here, rotary_, input, layer_, /*keep=*/true)));
}

at::Tensor DecoderBlock::backward(const PassContext& context, const UnitViews& parameters,
                                  const at::Tensor& input, Saved& saved,
                                  const at::Tensor& grad_output, const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  TORCH_CHECK(!saved.empty(), "unit ", layout().name,
              ": backward has nothing saved; forward saves when it is given a Saved, or call "
              "recompute()");
  const BlockPass here = pass(context, parameters, input);
  Kept kept = take(saved);
  const at::Tensor grad_middle = FeedForwardPass(here).backward(
      std::move(kept.feed_forward), std::move(kept.middle), grad_output, gradients);
  if (spec_.delta.exists())
    return DeltaPass(here, input, layer_)
        .backward(std::move(kept.attention), grad_middle, gradients);
  return AttentionPass(here, rotary_, input, layer_)
      .backward(std::move(kept.attention), grad_middle, gradients);
}

at::Tensor DecoderBlock::extend(const UnitViews& parameters, const at::Tensor& input,
                                KvCache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const PassContext context = {.training = false};
  const BlockPass here = pass(context, parameters, input);
  const FeedForwardPass feed_forward(here);
  at::Tensor middle =
      spec_.delta.exists()
          ? DeltaPass(here, input, layer_).extend(cache)
          : AttentionPass(here, rotary_, input, layer_, /*first=*/cache.length()).extend(cache);
  FeedForwardPass::Kept kept = feed_forward.begin(middle, input);
  return feed_forward.finish(std::move(kept), middle);
}

}  // namespace sluice::engine
