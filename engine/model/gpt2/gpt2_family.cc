#include "engine/model/gpt2/gpt2_family.h"

#include <array>

#include "engine/model/gpt2/gpt2_config.h"
#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/gpt2/gpt2_shape.h"

namespace sluice::engine {
namespace {

constexpr double kDropout = 0.1;

NamedShape preset(std::string_view name, std::int64_t layers, std::int64_t hidden,
                  std::int64_t heads, std::int64_t context_tokens) {
  constexpr std::int64_t kVocab = 50257;
  return {.name = name,
          .shape = {.layers = layers,
                    .hidden = hidden,
                    .heads = heads,
                    .context_tokens = context_tokens,
                    .vocab = kVocab,
                    .dropout = kDropout}};
}

// The matrices of attn and mlp are stored as [in, out] (Hugging Face's Conv1D), so that y = x W +
// b. Files may contain the causal mask in addition to the parameters.
bool is_mask(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

class Gpt2Family final : public ModelFamily {
 public:
  std::string_view name() const override { return kGpt2Family; }

  std::span<const NamedShape> presets() const override {
    // Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2.
    static const std::vector<NamedShape> shapes = {
        preset("gpt2-small", 12, 768, 12, 1024), preset("gpt2-medium", 24, 1024, 16, 1024),
        preset("gpt2-large", 36, 1280, 20, 1024), preset("gpt2-xl", 48, 1600, 25, 1024),
        preset("gpt-lite", 12, 768, 12, 2048)};
    return shapes;
  }

  std::span<const ShapeNumber> numbers() const override { return gpt2_numbers(); }

  DefaultNumbers default_numbers() const override { return {.dropout = kDropout}; }

  Status check(const ModelShape& shape) const override {
    if (shape.hidden % shape.heads == 0) return {};
    return cannot_build("hidden " + std::to_string(shape.hidden) + " cannot be divided among " +
                        std::to_string(shape.heads) + " heads: make it a multiple of that");
  }

  ModelLayout layout(const ModelOptions& options) const override { return gpt2_layout(options); }

  const ParameterNames& parameter_names(const ModelShape& shape) const override {
    static const ParameterNames of_tied = {.prefix = "transformer.",
                                           .is_buffer = &is_mask,
                                           .head = kHead,
                                           .is_tied = true,
                                           .token_embedding = "wte.weight"};
    // transformers treats names without the prefix as those of a model without a head.
    static const ParameterNames of_untied = {.prefix = "transformer.",
                                             .prefixes_exports = true,
                                             .is_buffer = &is_mask,
                                             .head = kHead,
                                             .token_embedding = "wte.weight"};
    return gpt2_variant(shape).tied ? of_tied : of_untied;
  }

  std::span<const std::string_view> model_types() const override {
    static constexpr std::array<std::string_view, 1> kTypes = {"gpt2"};
    return kTypes;
  }

  const std::map<std::string, std::string>& config_keys() const override {
    static const std::map<std::string, std::string> keys = {
        {"layers", "n_layer"},
        {"hidden", "n_embd"},
        {"heads", "n_head"},
        {"context", "n_positions"},
        {"vocab", "vocab_size"},
        {"ffn_hidden", "n_inner"},
        {"activation", "activation_function"},
        {"norm_epsilon", "layer_norm_epsilon"},
        {"tied_head", "tie_word_embeddings"},
        {"scale_attention", "scale_attn_weights"},
        {"scale_attention_by_layer", "scale_attn_by_inverse_layer_idx"}};
    return keys;
  }

  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    return parse_gpt2_config(text);
  }
  std::string write_config(const HuggingFaceModel& model) const override {
    return gpt2_config_text(model);
  }

 private:
  static constexpr std::string_view kHead = "lm_head.weight";
};

}  // namespace

const ModelFamily& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

}  // namespace sluice::engine
