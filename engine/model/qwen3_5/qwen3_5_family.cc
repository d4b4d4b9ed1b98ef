#include "engine/model/qwen3_5/qwen3_5_family.h"

#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/qwen3_5/qwen3_5_config.h"
#include "engine/model/qwen3_5/qwen3_5_shape.h"

namespace sluice::engine {
namespace {

struct Sizes {
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t ffn;
  std::int64_t delta_value_heads;
  bool tied;
};

struct Experts {
  double count;
  double per_token;
  double width;
};

NamedShape preset(std::string_view name, const Sizes& sizes) {
  return {.name = name,
          .shape = {.layers = sizes.layers,
                    .hidden = sizes.hidden,
                    .heads = sizes.heads,
                    .context_tokens = 262144,
                    .vocab = 248320,
                    .dropout = 0,
                    .ffn_hidden = sizes.ffn,
                    .family = std::string(kQwen35Family),
                    .numbers = {{"kv_heads", static_cast<double>(sizes.kv_heads)},
                                {"delta_value_heads", static_cast<double>(sizes.delta_value_heads)},
                                {"tied_head", sizes.tied ? 1 : 0}}}};
}

NamedShape with(const Experts& experts, NamedShape preset) {
  preset.shape.numbers["experts"] = experts.count;
  preset.shape.numbers["experts_per_token"] = experts.per_token;
  preset.shape.numbers["expert_width"] = experts.width;
  return preset;
}

// The text parts of the config.json files on the Hugging Face Hub.
std::vector<NamedShape> make_presets() {
  return {
      preset("qwen3.5-0.8b", {24, 1024, 8, 2, 3584, 16, true}),
      preset("qwen3.5-2b", {24, 2048, 8, 2, 6144, 16, true}),
      preset("qwen3.5-4b", {32, 2560, 16, 4, 9216, 32, true}),
      preset("qwen3.5-9b", {32, 4096, 16, 4, 12288, 32, false}),
      preset("qwen3.5-27b", {64, 5120, 24, 4, 17408, 48, false}),
      with(Experts{256, 8, 512}, preset("qwen3.5-35b-a3b", {40, 2048, 16, 2, 512, 32, false})),
      with(Experts{256, 8, 1024}, preset("qwen3.5-122b-a10b", {48, 3072, 32, 2, 1024, 64, false})),
      with(Experts{512, 10, 1024},
           preset("qwen3.5-397b-a17b", {60, 4096, 32, 2, 1024, 64, false}))};
}

// Tensors of a folder that are no part of the text model. transformers leaves out the latter, too.
bool is_left_out(std::string_view name) {
  return name.starts_with("visual.") || name.starts_with("mtp.");
}

constexpr std::string_view kExperts = "mlp.experts";
constexpr ExpertStack kStacks[] = {
    {.name = "mlp.experts.gate_up_proj", .experts = kExperts, .parts = {"gate_proj", "up_proj"}},
    {.name = "mlp.experts.down_proj", .experts = kExperts, .parts = {"down_proj"}}};

class Qwen35Family final : public ModelFamily {
 public:
  std::string_view name() const override { return kQwen35Family; }
  std::span<const NamedShape> presets() const override {
    static const std::vector<NamedShape> shapes = make_presets();
    return shapes;
  }
  std::span<const ShapeNumber> numbers() const override { return qwen3_5_numbers(); }
  DefaultNumbers default_numbers() const override { return {.dropout = 0, .ffn_multiplier = 3}; }
  void resolve_derived(ModelShape& shape) const override { resolve_qwen3_5(shape); }
  Status check(const ModelShape& shape) const override { return check_qwen3_5(shape); }
  std::span<const std::string_view> adapter_targets(const ModelShape& shape) const override {
    static const auto dense = engine::adapter_targets(qwen3_5_names(false));
    static const auto with_experts = engine::adapter_targets(qwen3_5_names(true));
    return has_qwen3_5_experts(shape) ? with_experts : dense;
  }
  ModelLayout layout(const ModelOptions& options) const override {
    return decoder_layout(qwen3_5_spec(options.shape), options);
  }

  const ParameterNames& parameter_names(const ModelShape& shape) const override {
    static const std::array<ParameterNames, 4> all = {names_of(false, false), names_of(true, false),
                                                      names_of(false, true), names_of(true, true)};
    return all[(qwen3_5_spec(shape).tied ? 1 : 0) + (has_qwen3_5_experts(shape) ? 2 : 0)];
  }
  std::span<const std::string_view> model_types() const override {
    static constexpr std::array<std::string_view, 4> kTypes = {"qwen3_5", "qwen3_5_text",
                                                               "qwen3_5_moe", "qwen3_5_moe_text"};
    return kTypes;
  }
  const std::map<std::string, std::string>& config_keys() const override {
    static const std::map<std::string, std::string> keys = {
        {"layers", "num_hidden_layers"},
        {"hidden", "hidden_size"},
        {"heads", "num_attention_heads"},
        {"context", "max_position_embeddings"},
        {"vocab", "vocab_size"},
        {"ffn_hidden", "intermediate_size (with experts shared_expert_intermediate_size)"},
        {"experts", "num_experts"},
        {"experts_per_token", "num_experts_per_tok"},
        {"expert_width", "moe_intermediate_size"},
        {"kv_heads", "num_key_value_heads"},
        {"norm_epsilon", "rms_norm_eps"},
        {"tied_head", "tie_word_embeddings"},
        {"rope_share", "partial_rotary_factor"},
        {"attention_interval", "full_attention_interval"},
        {"delta_key_heads", "linear_num_key_heads"},
        {"delta_value_heads", "linear_num_value_heads"},
        {"delta_key_dim", "linear_key_head_dim"},
        {"delta_value_dim", "linear_value_head_dim"},
        {"delta_taps", "linear_conv_kernel_dim"}};
    return keys;
  }
  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    return parse_qwen3_5_config(text);
  }
  std::string write_config(const HuggingFaceModel& model) const override {
    return qwen3_5_config_text(model);
  }

 private:
  // The Hub's files have each block's experts in two tensors, and so have exports.
  static ParameterNames names_of(bool is_tied, bool has_experts) {
    return {.prefix = "model.",
            .part = "language_model.",
            .prefixes_exports = true,
            .is_buffer = &is_left_out,
            .head = "lm_head.weight",
            .is_tied = is_tied,
            .token_embedding = "embed_tokens.weight",
            .stacks = has_experts ? std::span<const ExpertStack>(kStacks)
                                  : std::span<const ExpertStack>(),
            .exports_stacks = has_experts};
  }
};

}  // namespace

const ModelFamily& qwen3_5_family() {
  static const Qwen35Family family;
  return family;
}

}  // namespace sluice::engine
