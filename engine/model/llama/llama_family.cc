#include "engine/model/llama/llama_family.h"

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/llama/llama_config.h"
#include "engine/model/llama/llama_layout.h"
#include "engine/model/llama/llama_shape.h"

namespace sluice::engine {
namespace {

struct Sizes {
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t ffn;
  std::int64_t vocab;
  std::int64_t context;
};

using Numbers = std::map<std::string, double>;

NamedShape preset(std::string_view name, LlamaArchitecture architecture, const Sizes& sizes,
                  Numbers numbers) {
  numbers["architecture"] = static_cast<double>(architecture);
  numbers["kv_heads"] = static_cast<double>(sizes.kv_heads);
  numbers["head_dim"] = static_cast<double>(sizes.head_dim);
  return {.name = name,
          .shape = {.layers = sizes.layers,
                    .hidden = sizes.hidden,
                    .heads = sizes.heads,
                    .context_tokens = sizes.context,
                    .vocab = sizes.vocab,
                    .dropout = 0,
                    .ffn_hidden = sizes.ffn,
                    .family = std::string(kLlamaFamily),
                    .numbers = std::move(numbers)}};
}

constexpr double kTied = 1;
constexpr double kLlamaEpsilon = 1e-5;

struct Experts {
  double count;
  double per_token;
  double width;  // 0: that of Sizes::ffn
};
Numbers with(const Experts& experts, Numbers numbers) {
  numbers["experts"] = experts.count;
  numbers["experts_per_token"] = experts.per_token;
  numbers["expert_width"] = experts.width;
  return numbers;
}

// The rope_scaling in the config.json of Llama 3.1 and later.
Numbers llama3(double factor) {
  return {{"norm_epsilon", kLlamaEpsilon},
          {"rope_theta", 500000},
          {"rope_scaling", static_cast<double>(RopeScaling::kLlama3)},
          {"rope_factor", factor},
          {"rope_low_freq_factor", 1},
          {"rope_high_freq_factor", 4},
          {"rope_original_context", 8192}};
}

Numbers tied(Numbers numbers) {
  numbers["tied_head"] = kTied;
  return numbers;
}

// The sizes of the config.json files on the Hugging Face Hub.
std::vector<NamedShape> make_presets() {
  using enum LlamaArchitecture;
  const Numbers qwen = {{"norm_epsilon", 1e-6}, {"rope_theta", 1e6}};
  const Numbers mistral = {{"norm_epsilon", kLlamaEpsilon}, {"rope_theta", 1e6}};
  const Numbers qwen_moe = {{"norm_epsilon", 1e-6}, {"rope_theta", 1e6}, {"norm_topk_prob", 1}};
  const Numbers gpt_oss = {{"norm_epsilon", 1e-5},
                           {"attention_bias", 1},
                           {"window", 128},
                           {"window_layers", 1},
                           {"window_full_layers", 1},
                           {"rope_theta", 150000},
                           {"rope_scaling", static_cast<double>(RopeScaling::kYarn)},
                           {"rope_factor", 32},
                           {"rope_original_context", 4096},
                           {"rope_truncate", 0}};
  return {
      preset("llama2-7b", kLlama, {32, 4096, 32, 32, 128, 11008, 32000, 4096},
             {{"norm_epsilon", kLlamaEpsilon}}),
      preset("llama3.1-8b", kLlama, {32, 4096, 32, 8, 128, 14336, 128256, 131072}, llama3(8)),
      preset("llama3.2-1b", kLlama, {16, 2048, 32, 8, 64, 8192, 128256, 131072}, tied(llama3(32))),
      preset("llama3.2-3b", kLlama, {28, 3072, 24, 8, 128, 8192, 128256, 131072}, tied(llama3(32))),
      preset("llama3.3-70b", kLlama, {80, 8192, 64, 8, 128, 28672, 128256, 131072}, llama3(8)),
      preset("mistral-7b", kMistral, {32, 4096, 32, 8, 128, 14336, 32768, 32768}, mistral),
      preset("qwen2.5-0.5b", kQwen2, {24, 896, 14, 2, 64, 4864, 151936, 32768}, tied(qwen)),
      preset("qwen2.5-1.5b", kQwen2, {28, 1536, 12, 2, 128, 8960, 151936, 32768}, tied(qwen)),
      preset("qwen2.5-3b", kQwen2, {36, 2048, 16, 2, 128, 11008, 151936, 32768}, tied(qwen)),
      preset("qwen2.5-7b", kQwen2, {28, 3584, 28, 4, 128, 18944, 152064, 32768}, qwen),
      preset("qwen3-0.6b", kQwen3, {28, 1024, 16, 8, 128, 3072, 151936, 40960}, tied(qwen)),
      preset("qwen3-1.7b", kQwen3, {28, 2048, 16, 8, 128, 6144, 151936, 40960}, tied(qwen)),
      preset("qwen3-4b", kQwen3, {36, 2560, 32, 8, 128, 9728, 151936, 40960}, tied(qwen)),
      preset("qwen3-8b", kQwen3, {36, 4096, 32, 8, 128, 12288, 151936, 40960}, qwen),
      preset("qwen3-14b", kQwen3, {40, 5120, 40, 8, 128, 17408, 151936, 40960}, qwen),
      preset("qwen3-32b", kQwen3, {64, 5120, 64, 8, 128, 25600, 151936, 40960}, qwen),
      preset("qwen3-30b-a3b", kQwen3Moe, {48, 2048, 32, 4, 128, 6144, 151936, 40960},
             with(Experts{128, 8, 768}, qwen_moe)),
      preset("mixtral-8x7b", kMixtral, {32, 4096, 32, 8, 128, 14336, 32000, 32768},
             with(Experts{8, 2, 0}, mistral)),
      preset("gpt-oss-20b", kGptOss, {24, 2880, 64, 8, 64, 2880, 201088, 131072},
             with(Experts{32, 4, 0}, gpt_oss)),
      preset("gpt-oss-120b", kGptOss, {36, 2880, 64, 8, 64, 2880, 201088, 131072},
             with(Experts{128, 4, 0}, gpt_oss)),
      preset("phi3-mini", kPhi3, {32, 3072, 32, 32, 96, 8192, 32064, 4096},
             {{"norm_epsilon", 1e-5}, {"window", 2047}}),
      // Not phi4, with which the names of smaller models begin.
      preset("phi4-14b", kPhi3, {40, 5120, 40, 10, 128, 17920, 100352, 16384},
             {{"norm_epsilon", 1e-5}, {"rope_theta", 250000}}),
  };
}

// Older files contain this buffer, which can be computed. It belongs to each block, or to the
// model.
bool is_rotary_buffer(std::string_view name) {
  return name == "rotary_emb.inv_freq" || name.ends_with(".rotary_emb.inv_freq");
}

constexpr std::size_t kArchitectures = 9;

// The forms in which transformers 5 has experts in memory, and those of gpt-oss also in files.
std::span<const ExpertStack> stacks_of(LlamaArchitecture architecture) {
  constexpr std::string_view kIn = "mlp.experts.gate_up_proj";
  constexpr std::string_view kOut = "mlp.experts.down_proj";
  constexpr std::string_view kExperts = "mlp.experts";
  using Order = ExpertStack::Order;
  static constexpr std::array<ExpertStack, 2> kQwen3Moe = {
      {{.name = kIn, .experts = kExperts, .parts = {"gate_proj", "up_proj"}},
       {.name = kOut, .experts = kExperts, .parts = {"down_proj"}}}};
  constexpr std::string_view kMixtralExperts = "block_sparse_moe.experts";
  static constexpr std::array<ExpertStack, 2> kMixtral = {
      {{.name = kIn, .experts = kMixtralExperts, .parts = {"w1", "w3"}},
       {.name = kOut, .experts = kMixtralExperts, .parts = {"w2"}}}};
  static constexpr std::array<ExpertStack, 2> kGptOss = {
      {{.name = kIn,
        .experts = kExperts,
        .parts = {"gate_proj", "up_proj"},
        .order = Order::kInTurn},
       {.name = kOut, .experts = kExperts, .parts = {"down_proj"}, .order = Order::kInTurn}}};
  switch (architecture) {
    case LlamaArchitecture::kQwen3Moe:
      return kQwen3Moe;
    case LlamaArchitecture::kMixtral:
      return kMixtral;
    case LlamaArchitecture::kGptOss:
      return kGptOss;
    default:
      return {};
  }
}

class LlamaFamily final : public ModelFamily {
 public:
  std::string_view name() const override { return kLlamaFamily; }
  std::span<const NamedShape> presets() const override {
    static const std::vector<NamedShape> shapes = make_presets();
    return shapes;
  }
  std::span<const ShapeNumber> numbers() const override { return llama_numbers(); }
  // Llama 3's width, and no dropout.
  DefaultNumbers default_numbers() const override { return {.dropout = 0, .ffn_multiplier = 3.5}; }
  void resolve_derived(ModelShape& shape) const override { settle_llama(shape); }
  Status check(const ModelShape& shape) const override { return check_llama(shape); }
  std::span<const std::string_view> adapter_targets(const ModelShape& shape) const override {
    static const auto dense = engine::adapter_targets(llama_names(LlamaArchitecture::kLlama));
    static const auto packed = engine::adapter_targets(llama_names(LlamaArchitecture::kPhi3));
    static const auto with_experts =
        engine::adapter_targets(llama_names(LlamaArchitecture::kQwen3Moe));
    const LlamaArchitecture architecture = llama_architecture(shape);
    if (architecture == LlamaArchitecture::kPhi3) return packed;
    return has_experts(architecture) ? with_experts : dense;
  }
  ModelLayout layout(const ModelOptions& options) const override { return llama_layout(options); }

  const ParameterNames& parameter_names(const ModelShape& shape) const override {
    using Names = std::map<std::pair<LlamaArchitecture, bool>, ParameterNames>;
    static const Names all = [] {
      Names made;
      for (std::size_t i = 0; i < kArchitectures; ++i)
        for (const bool tied : {false, true}) {
          const auto architecture = static_cast<LlamaArchitecture>(i);
          made[{architecture, tied}] = {
              .prefix = "model.",
              .prefixes_exports = true,
              .is_buffer = &is_rotary_buffer,
              .head = "lm_head.weight",
              .is_tied = tied,
              .token_embedding = "embed_tokens.weight",
              .stacks = stacks_of(architecture),
              .exports_stacks = architecture == LlamaArchitecture::kGptOss};
        }
      return made;
    }();
    return all.at({llama_architecture(shape), llama_shape(shape).tied});
  }

  std::span<const std::string_view> model_types() const override {
    static constexpr std::array<std::string_view, kArchitectures> kTypes = {
        "llama",     "mistral", "qwen2",   "qwen3", "ministral",
        "qwen3_moe", "mixtral", "gpt_oss", "phi3"};
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
        {"architecture", "model_type"},
        {"kv_heads", "num_key_value_heads"},
        {"norm_epsilon", "rms_norm_eps"},
        {"tied_head", "tie_word_embeddings"},
        {"window", "sliding_window"},
        {"window_first_layer", "the first sliding_attention of layer_types"},
        {"experts", "num_experts"},
        {"experts_per_token", "num_experts_per_tok"},
        {"expert_width", "moe_intermediate_size"},
        {"rope_scaling", "rope_type"},
        {"rope_factor", "factor"},
        {"rope_original_context", "original_max_position_embeddings"},
        {"rope_low_freq_factor", "low_freq_factor"},
        {"rope_high_freq_factor", "high_freq_factor"},
        {"rope_attention_factor", "attention_factor"},
        {"rope_share", "partial_rotary_factor"}};
    return keys;
  }

  Result<HuggingFaceModel> read_config(std::string_view text) const override {
    return parse_llama_config(text);
  }
  std::string write_config(const HuggingFaceModel& model) const override {
    return llama_config_text(model);
  }
};

}  // namespace

const ModelFamily& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace sluice::engine
