#include "engine/model/gemma3/gemma3_family.h"

#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/gemma3/gemma3_config.h"
#include "engine/model/gemma3/gemma3_shape.h"

namespace sluice::engine {
namespace {

struct Sizes {
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t ffn;
  std::int64_t query_scalar;
};

// `is_small`: a text model; the others also see images, and have a longer context.
NamedShape preset(std::string_view name, const Sizes& sizes, bool is_small) {
  constexpr std::int64_t kShortContext = 32768;
  constexpr std::int64_t kLongContext = 131072;
  constexpr std::int64_t kTextVocab = 262144;
  constexpr std::int64_t kImageVocab = 262208;
  return {.name = name,
          .shape = {.layers = sizes.layers,
                    .hidden = sizes.hidden,
                    .heads = sizes.heads,
                    .context_tokens = is_small ? kShortContext : kLongContext,
                    .vocab = is_small ? kTextVocab : kImageVocab,
                    .dropout = 0,
                    .ffn_hidden = sizes.ffn,
                    .family = std::string(kGemma3Family),
                    .numbers = {{"kv_heads", static_cast<double>(sizes.kv_heads)},
                                {"head_dim", static_cast<double>(sizes.head_dim)},
                                {"query_scalar", static_cast<double>(sizes.query_scalar)},
                                {"window", is_small ? 512 : 1024},
                                {"rope_factor", is_small ? 1 : 8}}}};
}

// The text parts of the config.json files on the Hugging Face Hub.
std::vector<NamedShape> make_presets() {
  return {preset("gemma3-270m", {18, 640, 4, 1, 256, 2048, 256}, true),
          preset("gemma3-1b", {26, 1152, 4, 1, 256, 6912, 256}, true),
          preset("gemma3-4b", {34, 2560, 8, 4, 256, 10240, 256}, false),
          preset("gemma3-12b", {48, 3840, 16, 8, 256, 15360, 256}, false),
          preset("gemma3-27b", {62, 5376, 32, 16, 128, 21504, 168}, false)};
}

// Tensors of a folder that are no part of the text model.
bool is_left_out(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

class Gemma3Family final : public ModelFamily {
 public:
  std::string_view name() const override { return kGemma3Family; }
  std::span<const NamedShape> presets() const override {
    static const std::vector<NamedShape> shapes = make_presets();
    return shapes;
  }
  std::span<const ShapeNumber> numbers() const override { return gemma3_numbers(); }
  DefaultNumbers default_numbers() const override { return {.dropout = 0, .ffn_multiplier = 4}; }
  void resolve_derived(ModelShape& shape) const override { resolve_gemma3(shape); }
  Status check(const ModelShape& shape) const override { return check_gemma3(shape); }
  std::span<const std::string_view> adapter_targets(const ModelShape& /*shape*/) const override {
    static const auto targets = engine::adapter_targets(gemma3_names());
    return targets;
  }
  ModelLayout layout(const ModelOptions& options) const override {
    return decoder_layout(gemma3_spec(options.shape), options);
  }

  const ParameterNames& parameter_names(const ModelShape& shape) const override {
    static const ParameterNames of_tied = names_of(true);
    static const ParameterNames of_untied = names_of(false);
    return gemma3_spec(shape).tied ? of_tied : of_untied;
  }
  std::span<const std::string_view> model_types() const override {
    static constexpr std::array<std::string_view, 2> kTypes = {"gemma3", "gemma3_text"};
    return kTypes;
  }
  const std::map<std::string, std::string>& config_keys() const override {
    static const std::map<std::string, std::string> keys = {
        {"layers", "num_hidden_layers"},
        {"hidden", "hidden_size"},
        {"heads", "num_attention_heads"},
        {"context", "max_position_embeddings"},
        {"vocab", "vocab_size"},
        {"ffn_hidden", "intermediate_size"},
        {"kv_heads", "num_key_value_heads"},
        {"norm_epsilon", "rms_norm_eps"},
        {"tied_head", "tie_word_embeddings"},
        {"query_scalar", "query_pre_attn_scalar"},
        {"window", "sliding_window"},
        {"full_interval", "sliding_window_pattern"},
        {"window_rope_theta", "rope_local_base_freq"}};
    return keys;
  }
  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    return parse_gemma3_config(text);
  }
  std::string write_config(const HuggingFaceModel& model) const override {
    return gemma3_config_text(model);
  }

 private:
  static ParameterNames names_of(bool is_tied) {
    return {.prefix = "model.",
            .part = "language_model.",
            .prefixes_exports = true,
            .is_buffer = &is_left_out,
            .head = "lm_head.weight",
            .is_tied = is_tied,
            .token_embedding = "embed_tokens.weight"};
  }
};

}  // namespace

const ModelFamily& gemma3_family() {
  static const Gemma3Family family;
  return family;
}

}  // namespace sluice::engine
