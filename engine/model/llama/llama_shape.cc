#include "engine/model/llama/llama_shape.h"

#include <string>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kMostCount = 1 << 24;
constexpr double kMostFactor = 1e9;

// The names are those of the keys after "model.".
constexpr const char* kArchitecture = "architecture";
constexpr const char* kKvHeads = "kv_heads";
constexpr const char* kHeadDim = "head_dim";
constexpr const char* kNormEpsilon = "norm_epsilon";
constexpr const char* kTiedHead = "tied_head";
constexpr const char* kAttentionBias = "attention_bias";
constexpr const char* kMlpBias = "mlp_bias";
constexpr const char* kWindow = "window";
constexpr const char* kWindowFirst = "window_first_layer";
constexpr const char* kWindowLayers = "window_layers";
constexpr const char* kFullLayers = "window_full_layers";
constexpr const char* kTheta = "rope_theta";
constexpr const char* kScaling = "rope_scaling";
constexpr const char* kFactor = "rope_factor";
constexpr const char* kOriginalContext = "rope_original_context";
constexpr const char* kLowFactor = "rope_low_freq_factor";
constexpr const char* kHighFactor = "rope_high_freq_factor";
constexpr const char* kAttentionFactor = "rope_attention_factor";
constexpr const char* kMscale = "rope_mscale";
constexpr const char* kMscaleAllDim = "rope_mscale_all_dim";
constexpr const char* kBetaFast = "rope_beta_fast";
constexpr const char* kBetaSlow = "rope_beta_slow";
constexpr const char* kTruncate = "rope_truncate";

// A count: of layers, heads or tokens.
ShapeNumber count(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostCount,
          .whole = true,
          .meaning = meaning};
}

ShapeNumber factor(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostFactor,
          .meaning = meaning};
}

ShapeNumber word(std::string_view key, std::string_view choices, double default_value,
                 std::string_view meaning) {
  return {.key = key, .default_value = default_value, .choices = choices, .meaning = meaning};
}

std::vector<ShapeNumber> make_numbers() {
  return {
      word("model.architecture", kLlamaArchitectures, 0,
           "whose code in transformers: it decides which biases and norms there can be"),
      count("model.kv_heads", 0, "heads of keys and of values; 0: as many as model.heads"),
      count("model.head_dim", 0, "numbers of a head; 0: model.hidden / model.heads"),
      {.key = "model.norm_epsilon",
       .default_value = 1e-6,
       .minimum = 0,
       .maximum = 1000,
       .meaning = "rms_norm_eps"},
      word("model.tied_head", kSwitchChoices, 0,
           "whether the output projection is the token embedding (tie_word_embeddings)"),
      word("model.attention_bias", kSwitchChoices, 0,
           "biases of attention's products: of llama and qwen3; a qwen2 has those of queries, keys "
           "and values anyway"),
      word("model.mlp_bias", kSwitchChoices, 0, "biases of the feed-forward layer: of llama"),
      count("model.window", 0,
            "keys that a query sees, its own among them (sliding_window); 0: all before it"),
      count("model.window_first_layer", 0, "the first block with the window"),
      count("model.window_layers", 0,
            "blocks in a row with the window, before window_full_layers without; 0: all from the "
            "first on"),
      count("model.window_full_layers", 0, "blocks in a row without it"),
      factor("model.rope_theta", 10000, "base of the rotary frequencies"),
      word("model.rope_scaling", kRopeScalings, 0,
           "how rotary positions reach beyond the first training's (rope_type)"),
      factor("model.rope_factor", 1, "of the scaling"),
      count("model.rope_original_context", 0,
            "tokens of the first training's sequences (original_max_position_embeddings); 0: "
            "model.context"),
      factor("model.rope_low_freq_factor", 1, "of llama3"),
      factor("model.rope_high_freq_factor", 4, "of llama3"),
      factor("model.rope_attention_factor", 0, "of yarn; 0: by its other numbers"),
      factor("model.rope_mscale", 0, "of yarn; 0: none"),
      factor("model.rope_mscale_all_dim", 0, "of yarn; 0: none"),
      factor("model.rope_beta_fast", 32, "of yarn"),
      factor("model.rope_beta_slow", 1, "of yarn"),
      word("model.rope_truncate", kSwitchChoices, 1, "of yarn: whole dimensions as its limits"),
  };
}

// The numbers of a shape, by name.
class Numbers {
 public:
  explicit Numbers(const ModelShape& shape) : shape_(shape) {}
  double number(const char* name) const { return shape_.numbers.at(name); }
  std::int64_t count(const char* name) const { return static_cast<std::int64_t>(number(name)); }
  bool on(const char* name) const { return number(name) != 0; }
  template <typename Enum>
  Enum word(const char* name) const {
    return static_cast<Enum>(count(name));
  }

 private:
  const ModelShape& shape_;
};

Rope rope_of(const ModelShape& shape) {
  const Numbers numbers(shape);
  const std::int64_t original = numbers.count(kOriginalContext);
  return {.theta = numbers.number(kTheta),
          .scaling = numbers.word<RopeScaling>(kScaling),
          .factor = numbers.number(kFactor),
          .original_context = original == 0 ? shape.context_tokens : original,
          .low_frequency_factor = numbers.number(kLowFactor),
          .high_frequency_factor = numbers.number(kHighFactor),
          .attention_factor = numbers.number(kAttentionFactor),
          .mscale = numbers.number(kMscale),
          .mscale_all_dim = numbers.number(kMscaleAllDim),
          .beta_fast = numbers.number(kBetaFast),
          .beta_slow = numbers.number(kBetaSlow),
          .truncate = numbers.on(kTruncate)};
}

std::string text(std::int64_t number) { return std::to_string(number); }

Status check_heads(const LlamaShape& shape) {
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0)
    return cannot_build(text(shape.heads) + " heads cannot share " + text(shape.kv_heads) +
                        " of keys and values (kv_heads): make heads a multiple of them");
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0)
    return cannot_build("head_dim is " + text(shape.head_dim) +
                        "; rotary positions turn pairs of numbers, so it must be even");
  constexpr std::int64_t kMostHeadDim = 256;
  if (shape.head_dim > kMostHeadDim)
    return cannot_build("head_dim is " + text(shape.head_dim) + "; it can be at most " +
                        text(kMostHeadDim));
  return {};
}

Status check_architecture(const ModelShape& of, const LlamaShape& shape) {
  const Numbers numbers(of);
  const LlamaArchitecture architecture = shape.architecture;
  const bool may_have_bias =
      architecture == LlamaArchitecture::kLlama || architecture == LlamaArchitecture::kQwen3;
  if (numbers.on(kAttentionBias) && !may_have_bias)
    return cannot_build(architecture == LlamaArchitecture::kQwen2
                            ? "a qwen2 has the biases that it has: leave attention_bias out"
                            : "a mistral has no biases: leave attention_bias out");
  if (numbers.on(kMlpBias) && architecture != LlamaArchitecture::kLlama)
    return cannot_build("mlp_bias is of the architecture llama alone");
  if (shape.window.tokens != 0 && architecture == LlamaArchitecture::kLlama)
    return cannot_build("a window is of the architectures mistral, qwen2 and qwen3, not of llama");
  if (architecture == LlamaArchitecture::kMistral && shape.window.tokens != 0 &&
      (shape.window.first != 0 || shape.window.windowed != 0))
    return cannot_build(
        "all blocks of a mistral have the window: leave window_first_layer and "
        "window_layers out");
  return {};
}

Status check_rope(const LlamaShape& shape) {
  const Rope& rope = shape.rope;
  if (!(rope.theta > 1))
    return cannot_build("rope_theta is " + std::to_string(rope.theta) + "; it must be more than 1");
  if (rope.scaling == RopeScaling::kNone) return {};
  if (!(rope.factor >= 1))
    return cannot_build("rope_factor is " + std::to_string(rope.factor) +
                        "; it must be at least 1");
  if (rope.scaling == RopeScaling::kDynamic && shape.head_dim == 2)
    return cannot_build("rope_scaling dynamic needs heads of more than 2 numbers");
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(rope.low_frequency_factor > 0 && rope.high_frequency_factor > rope.low_frequency_factor))
    return cannot_build(
        "rope_high_freq_factor must be more than rope_low_freq_factor, and that "
        "more than 0");
  if (rope.scaling == RopeScaling::kYarn && !(rope.beta_fast > 0 && rope.beta_slow > 0))
    return cannot_build("rope_beta_fast and rope_beta_slow must be more than 0");
  return {};
}

}  // namespace

std::span<const ShapeNumber> llama_numbers() {
  static const std::vector<ShapeNumber> numbers = make_numbers();
  return numbers;
}

LlamaShape llama_shape(const ModelShape& shape) {
  const Numbers numbers(shape);
  const auto architecture = numbers.word<LlamaArchitecture>(kArchitecture);
  const std::int64_t kv_heads = numbers.count(kKvHeads);
  const std::int64_t head_dim = numbers.count(kHeadDim);
  const bool bias = numbers.on(kAttentionBias);
  return {.layers = shape.layers,
          .hidden = shape.hidden,
          .heads = shape.heads,
          .kv_heads = kv_heads == 0 ? shape.heads : kv_heads,
          .head_dim = head_dim == 0 ? shape.hidden / shape.heads : head_dim,
          .ffn = shape.ffn(),
          .vocab = shape.vocab,
          .attention_dropout = shape.dropout,
          .epsilon = numbers.number(kNormEpsilon),
          .architecture = architecture,
          .tied = numbers.on(kTiedHead),
          .qkv_bias = bias || architecture == LlamaArchitecture::kQwen2,
          .output_bias = bias,
          .mlp_bias = numbers.on(kMlpBias),
          .head_norms = architecture == LlamaArchitecture::kQwen3,
          .rope = rope_of(shape),
          .window = {.tokens = numbers.count(kWindow),
                     .first = numbers.count(kWindowFirst),
                     .windowed = numbers.count(kWindowLayers),
                     .full = numbers.count(kFullLayers)}};
}

Status check_llama(const ModelShape& shape) {
  const LlamaShape llama = llama_shape(shape);
  if (llama.architecture == LlamaArchitecture::kLlama && shape.hidden % shape.heads != 0)
    return cannot_build("hidden " + text(shape.hidden) + " cannot be divided among " +
                        text(shape.heads) +
                        " heads, which transformers wants of a llama: make it a multiple of them");
  SLUICE_RETURN_IF_ERROR(check_heads(llama));
  SLUICE_RETURN_IF_ERROR(check_architecture(shape, llama));
  return check_rope(llama);
}

void settle_llama(ModelShape& shape) {
  // Not checked yet: values that are not counts stay unchanged.
  const auto settle = [&shape](const char* name, std::int64_t value) {
    double& number = shape.numbers[name];
    if (number == 0) number = static_cast<double>(value);
  };
  settle(kKvHeads, shape.heads);
  if (shape.heads > 0) settle(kHeadDim, shape.hidden / shape.heads);
  const double scaling = shape.numbers[kScaling];
  if (scaling == static_cast<double>(RopeScaling::kNone) ||
      scaling == static_cast<double>(RopeScaling::kLinear))
    shape.numbers[kOriginalContext] = 0;  // these scalings do not read it
  else
    settle(kOriginalContext, shape.context_tokens);
}

}  // namespace sluice::engine
