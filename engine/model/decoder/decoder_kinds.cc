#include "engine/model/decoder/decoder_kinds.h"

#include <algorithm>

#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/block_memory.h"
#include "engine/model/op_costs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

class EmbeddingKind final : public UnitKind {
 public:
  EmbeddingKind(const DecoderSpec& spec, bool is_trained)
      : UnitKind("embedding", UnitRole::kEmbedding),
        hidden_(spec.block.hidden),
        tables_(spec.positions > 0 ? 2 : 1),
        is_scaled_(spec.embedding_scale != 1),
        is_trained_(is_trained) {}

  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  // Forward reads a row of each table and writes their sum; backward reads the gradient and adds it
  // to an fp32 row of each.
  Traffic traffic(std::int64_t number_bytes) const override {
    const auto hidden = static_cast<double>(hidden_);
    const auto tables = static_cast<double>(tables_);
    const auto width = static_cast<double>(number_bytes);
    return {.forward = hidden * (tables + 1) * width,
            .backward = is_trained_ ? hidden * tables * (width + 2 * kFp32Bytes) : 0};
  }
  // The output and, with positions, rows of both tables, or what dropout makes of their sum; or the
  // gradient, also scaled and in fp32.
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& /*options*/) const override {
    const std::int64_t rows = tables_ > 1 ? 3 : 1;
    const std::int64_t bytes =
        std::max(rows * pass.number_bytes, (is_scaled_ ? 2 : 1) * pass.number_bytes + kFp32Bytes);
    return static_cast<std::uint64_t>(pass.rows() * hidden_ * bytes);
  }

 private:
  std::int64_t hidden_;
  std::int64_t tables_;
  bool is_scaled_;
  bool is_trained_;
};

class BlockKind final : public UnitKind {
 public:
  BlockKind(std::string_view name, const BlockSpec& spec, const LoraRecipe& lora)
      : UnitKind(std::string(name), UnitRole::kBlock),
        spec_(spec),
        lora_(lora),
        adapters_(adapter_numbers(spec, lora)) {}

  Flops flops(std::int64_t tokens) const override { return block_flops(spec_, adapters_, tokens); }
  Traffic traffic(std::int64_t number_bytes) const override {
    return block_traffic(spec_, number_bytes);
  }
  Fp8Work fp8_work(std::int64_t number_bytes) const override {
    return block_fp8_work(spec_, number_bytes);
  }
  std::uint64_t saved_bytes(const PassShape& pass) const override {
    return block_saved_bytes(spec_, pass);
  }
  std::uint64_t idle_elements() const override { return block_idle_elements(spec_); }
  std::int64_t experts() const override { return spec_.experts.count; }
  KvShape kv_shape() const override {
    if (spec_.delta.exists()) return {};
    return {.heads = spec_.attention.kv_heads, .head_dim = spec_.attention.head_dim};
  }
  StateShape state_shape() const override {
    if (!spec_.delta.exists()) return {};
    const DeltaHeads& heads = spec_.delta.heads;
    return {.inputs = spec_.delta.taps - 1,
            .input_width = heads.qkv_width(),
            .heads = heads.value_heads,
            .key_dim = heads.key_dim,
            .value_dim = heads.value_dim};
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    return block_peak_bytes(spec_, lora_, pass, options);
  }

 private:
  BlockSpec spec_;
  LoraRecipe lora_;
  AdapterNumbers adapters_;
};

class HeadKind final : public UnitKind {
 public:
  HeadKind(const DecoderSpec& spec, bool is_trained, std::int64_t padded_vocab)
      : UnitKind("head", UnitRole::kHead),
        norm_(spec.block.norm),
        is_trained_(is_trained),
        costs_{.hidden = spec.block.hidden,
               .vocab = spec.vocab,
               .columns = spec.tied && padded_vocab != 0 ? padded_vocab : spec.vocab,
               .capped = spec.logit_cap > 0} {}

  Flops flops(std::int64_t /*tokens*/) const override {
    Flops flops = costs_.flops();
    if (!is_trained_) flops.backward /= 2;  // the input's gradient, without the weight's
    return flops;
  }
  Traffic traffic(std::int64_t number_bytes) const override {
    return logits_traffic(costs_.vocab, number_bytes);
  }
  std::uint64_t peak_bytes(const PassShape& pass, const PeakOptions& options) const override {
    const std::int64_t statistics = norm_ == NormKind::kLayer ? 2 : 1;
    return costs_.peak_bytes(pass, options, statistics) +
           norm_copies_bytes(norm_, costs_.hidden, pass, options);
  }

 private:
  NormKind norm_;
  bool is_trained_;
  OutputCosts costs_;
};

}  // namespace

std::shared_ptr<const UnitKind> embedding_kind(const DecoderSpec& spec, const LoraRecipe& lora) {
  return std::make_shared<EmbeddingKind>(spec, !lora.exists());
}

std::shared_ptr<const UnitKind> block_kind(std::string_view name, const BlockSpec& spec,
                                           const LoraRecipe& lora) {
  return std::make_shared<BlockKind>(name, spec, lora);
}

std::shared_ptr<const UnitKind> head_kind(const DecoderSpec& spec, const LoraRecipe& lora,
                                          std::int64_t padded_vocab) {
  return std::make_shared<HeadKind>(spec, !lora.exists(), padded_vocab);
}

}  // namespace sluice::engine
