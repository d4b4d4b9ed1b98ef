#include "engine/model/llama/llama_shape.h"

#include <string>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kMostCount = 1 << 24;
constexpr double kMostFactor = 1e9;
constexpr std::int64_t kMostExperts = 1 << 12;

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
constexpr const char* kShare = "rope_share";
constexpr const char* kExperts = "experts";
constexpr const char* kPerToken = "experts_per_token";
constexpr const char* kExpertWidth = "expert_width";
constexpr const char* kRenormalises = "norm_topk_prob";
constexpr const char* kBalance = kBalanceCoefficient.data();

// A count: of layers, heads or tokens.
ShapeNumber count(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostCount,
          .whole = true,
          .meaning = meaning};
}

// A number that earlier models of the family lack, and then it has its default.
ShapeNumber later(ShapeNumber number) {
  number.omit_if_default = true;
  return number;
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
           "architecture in transformers, which decides which biases and norms are possible"),
      count("model.kv_heads", 0, "key and value heads; 0: as many as model.heads"),
      count("model.head_dim", 0, "width of a head; 0: model.hidden / model.heads"),
      {.key = "model.norm_epsilon",
       .default_value = 1e-6,
       .minimum = 0,
       .maximum = 1000,
       .meaning = "rms_norm_eps"},
      word("model.tied_head", kSwitchChoices, 0,
           "use the token embedding as the output projection (tie_word_embeddings)"),
      word("model.attention_bias", kSwitchChoices, 0,
           "biases in attention's linear layers, for llama, qwen3, qwen3_moe and gpt_oss; qwen2 "
           "always has "
           "those of queries, keys and values"),
      word("model.mlp_bias", kSwitchChoices, 0, "biases in the feed-forward layer, for llama"),
      count("model.window", 0,
            "sliding window in tokens: the keys that a query sees, including its own "
            "(sliding_window); 0: all before it"),
      count("model.window_first_layer", 0, "the first block with the window"),
      count("model.window_layers", 0,
            "consecutive blocks with the window, followed by window_full_layers blocks without; 0: "
            "all after the first"),
      count("model.window_full_layers", 0, "consecutive blocks without the window"),
      factor("model.rope_theta", 10000, "base of the rotary frequencies"),
      word("model.rope_scaling", kRopeScalings, 0,
           "how rotary positions are extended beyond the original context (rope_type)"),
      factor("model.rope_factor", 1, "factor of the scaling"),
      count("model.rope_original_context", 0,
            "sequence length of the original training, in tokens "
            "(original_max_position_embeddings); 0: model.context"),
      factor("model.rope_low_freq_factor", 1, "for llama3"),
      factor("model.rope_high_freq_factor", 4, "for llama3"),
      factor("model.rope_attention_factor", 0, "for yarn; 0: computed from its other parameters"),
      factor("model.rope_mscale", 0, "for yarn; 0: none"),
      factor("model.rope_mscale_all_dim", 0, "for yarn; 0: none"),
      factor("model.rope_beta_fast", 32, "of yarn"),
      factor("model.rope_beta_slow", 1, "of yarn"),
      word("model.rope_truncate", kSwitchChoices, 1,
           "for yarn: round its limits to whole dimensions"),
      later(count("model.experts", 0,
                  "small feed-forward layers in each block, of which a router chooses "
                  "experts_per_token for each token (num_experts), for qwen3_moe, mixtral and "
                  "gpt_oss")),
      later(count("model.experts_per_token", 0,
                  "experts that compute each token (num_experts_per_tok)")),
      later(count(
          "model.expert_width", 0,
          "for qwen3_moe: width of an expert (moe_intermediate_size); 0: model.ffn_multiplier "
          "times model.hidden, which mixtral and gpt_oss always have")),
      later(word("model.norm_topk_prob", kSwitchChoices, 0,
                 "for qwen3_moe: divide the weights of a token's experts by their sum, as mixtral "
                 "and gpt_oss always do")),
      later(factor("model.router_aux_loss_coef", 0,
                   "for qwen3_moe, mixtral and gpt_oss: adds so many times the balance loss, which "
                   "is lower the more evenly tokens are shared among the experts; 0: none, as with "
                   "output_router_logits false")),
      later({.key = "model.rope_share",
             .default_value = 1,
             .minimum = 0,
             .maximum = 1,
             .meaning = "for phi3: part of each head that is rotated, at its beginning "
                        "(partial_rotary_factor)"}),
  };
}

// The numbers of a shape, by name.
class Numbers {
 public:
  explicit Numbers(const ModelShape& shape) : shape_(shape) {}
  // 0 for a number that the shape lacks: one that came later, and that it does not need.
  double number(const char* name) const {
    const auto found = shape_.numbers.find(name);
    return found == shape_.numbers.end() ? 0 : found->second;
  }
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
          .truncate = numbers.on(kTruncate),
          .share = shape.numbers.contains(kShare) ? numbers.number(kShare) : 1};
}

// swiglu_alpha and swiglu_limit of gpt-oss.
constexpr ClampedGate kGptOssGate = {.alpha = 1.702, .limit = 7};

// All 0 in an architecture without experts.
ExpertsSpec experts_of(const ModelShape& shape, LlamaArchitecture architecture) {
  if (!has_experts(architecture)) return {};
  const Numbers numbers(shape);
  const bool of_ffn = has_ffn_experts(architecture);
  const bool is_gpt_oss = architecture == LlamaArchitecture::kGptOss;
  const std::int64_t width = numbers.count(kExpertWidth);
  return {.count = numbers.count(kExperts),
          .per_token = numbers.count(kPerToken),
          .width = width == 0 || of_ffn ? shape.ffn() : width,
          .renormalises = of_ffn || numbers.on(kRenormalises),
          .fp32_weights = architecture == LlamaArchitecture::kMixtral,
          .bias = is_gpt_oss,
          .gate = is_gpt_oss ? kGptOssGate : ClampedGate{}};
}

std::string text(std::int64_t number) { return std::to_string(number); }

std::string architecture_name(LlamaArchitecture architecture) {
  return word("", kLlamaArchitectures, 0, "").text(static_cast<double>(architecture));
}

Status check_heads(const LlamaShape& shape) {
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0)
    return cannot_build(text(shape.heads) + " heads cannot be divided among " +
                        text(shape.kv_heads) +
                        " key and value heads (kv_heads): make heads a multiple of kv_heads");
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0)
    return cannot_build("head_dim is " + text(shape.head_dim) +
                        "; rotary positions rotate pairs of numbers, so it must be even");
  constexpr std::int64_t kMostHeadDim = 256;
  if (shape.head_dim > kMostHeadDim)
    return cannot_build("head_dim is " + text(shape.head_dim) + "; it must be at most " +
                        text(kMostHeadDim));
  return {};
}

Status check_architecture(const ModelShape& of, const LlamaShape& shape) {
  const Numbers numbers(of);
  const LlamaArchitecture architecture = shape.architecture;
  const std::string name = architecture_name(architecture);
  if (numbers.on(kAttentionBias) && !may_have_attention_bias(architecture))
    return cannot_build(architecture == LlamaArchitecture::kQwen2
                            ? "the biases of qwen2 are fixed: leave attention_bias out"
                            : name + " has no biases: leave attention_bias out");
  if (numbers.on(kMlpBias) && architecture != LlamaArchitecture::kLlama)
    return cannot_build("mlp_bias is only for the architecture llama");
  if (shape.window.tokens != 0 && architecture == LlamaArchitecture::kLlama)
    return cannot_build(
        "a window is for other architectures, such as mistral and qwen3, not llama");
  if (has_one_window(architecture) && shape.window.tokens != 0 &&
      (shape.window.first != 0 || shape.window.windowed != 0))
    return cannot_build("all blocks of " + name +
                        " have the window: leave window_first_layer and window_layers out");
  return {};
}

Status check_experts(const ModelShape& of, const LlamaShape& shape) {
  const Numbers numbers(of);
  const std::string name = architecture_name(shape.architecture);
  if (!has_experts(shape.architecture)) {
    for (const char* const key : {kExperts, kPerToken, kExpertWidth, kRenormalises, kBalance})
      if (numbers.on(key))
        return cannot_build(std::string(key) +
                            " is for the architectures qwen3_moe, mixtral and gpt_oss; " + name +
                            " has no experts");
    return {};
  }
  const ExpertsSpec& experts = shape.experts;
  if (experts.count < 1)
    return cannot_build(name + " needs experts: the number of experts in each block");
  if (experts.count > kMostExperts)
    return cannot_build("experts is " + text(experts.count) + "; it must be at most " +
                        text(kMostExperts));
  if (experts.per_token < 1)
    return cannot_build(name + " needs experts_per_token: the experts that compute each token");
  if (experts.per_token > experts.count)
    return cannot_build("experts_per_token is " + text(experts.per_token) +
                        ", but each block has " + text(experts.count) + " experts");
  if (!has_ffn_experts(shape.architecture)) return {};
  if (numbers.on(kExpertWidth))
    return cannot_build("the feed-forward's width is the expert's in " + name +
                        ": leave expert_width out");
  if (numbers.on(kRenormalises))
    return cannot_build(name +
                        " always divides the weights by their sum: leave norm_topk_prob out");
  return {};
}

// The part of each head that is rotated, and scalings.
Status check_rope_kind(const LlamaShape& shape) {
  const Rope& rope = shape.rope;
  const std::string name = architecture_name(shape.architecture);
  if (!may_rotate_parts(shape.architecture))
    return rope.share == 1 ? Status()
                           : cannot_build("rope_share is for the architecture phi3; " + name +
                                          " rotates whole heads");
  if (rope.scaling != RopeScaling::kNone)
    return cannot_build("rope_scaling is for other architectures, not " + name);
  const std::int64_t rotated = rope.rotated(shape.head_dim);
  if (rotated >= 2 && rotated % 2 == 0) return {};
  return cannot_build("rope_share rotates " + text(rotated) + " of " + text(shape.head_dim) +
                      " numbers of a head; these are rotated in pairs, so it must be at least 2 "
                      "and even");
}

Status check_rope(const LlamaShape& shape) {
  const Rope& rope = shape.rope;
  SLUICE_RETURN_IF_ERROR(check_rope_kind(shape));
  if (!(rope.theta > 1))
    return cannot_build("rope_theta is " + std::to_string(rope.theta) + "; it must be more than 1");
  if (rope.scaling == RopeScaling::kNone) return {};
  if (!(rope.factor >= 1))
    return cannot_build("rope_factor is " + std::to_string(rope.factor) +
                        "; it must be at least 1");
  if (rope.scaling == RopeScaling::kDynamic && shape.head_dim == 2)
    return cannot_build("rope_scaling dynamic needs a head width above 2");
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(rope.low_frequency_factor > 0 && rope.high_frequency_factor > rope.low_frequency_factor))
    return cannot_build(
        "rope_high_freq_factor must be more than rope_low_freq_factor, which must be more than 0");
  if (rope.scaling == RopeScaling::kYarn && !(rope.beta_fast > 0 && rope.beta_slow > 0))
    return cannot_build("rope_beta_fast and rope_beta_slow must be more than 0");
  return {};
}

}  // namespace

std::span<const ShapeNumber> llama_numbers() {
  static const std::vector<ShapeNumber> numbers = make_numbers();
  return numbers;
}

LlamaArchitecture llama_architecture(const ModelShape& shape) {
  const double number = Numbers(shape).number(kArchitecture);
  const double most = word("", kLlamaArchitectures, 0, "").most();
  return number >= 0 && number <= most ? static_cast<LlamaArchitecture>(number)
                                       : LlamaArchitecture::kLlama;
}

LlamaShape llama_shape(const ModelShape& shape) {
  const Numbers numbers(shape);
  const LlamaArchitecture architecture = llama_architecture(shape);
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
          .head_norms = architecture == LlamaArchitecture::kQwen3 ||
                        architecture == LlamaArchitecture::kQwen3Moe,
          .sinks = architecture == LlamaArchitecture::kGptOss,
          .experts = experts_of(shape, architecture),
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
                        " heads, as transformers requires for llama: make it a multiple of that");
  SLUICE_RETURN_IF_ERROR(check_heads(llama));
  SLUICE_RETURN_IF_ERROR(check_architecture(shape, llama));
  SLUICE_RETURN_IF_ERROR(check_experts(shape, llama));
  return check_rope(llama);
}

void settle_llama(ModelShape& shape) {
  // Not checked yet: values that are not counts stay unchanged.
  const auto resolve_derived = [&shape](const char* name, std::int64_t value) {
    double& number = shape.numbers[name];
    if (number == 0) number = static_cast<double>(value);
  };
  resolve_derived(kKvHeads, shape.heads);
  if (shape.heads > 0) resolve_derived(kHeadDim, shape.hidden / shape.heads);
  // Mixtral's experts have the feed-forward's width, which is a number already.
  if (llama_architecture(shape) == LlamaArchitecture::kQwen3Moe)
    resolve_derived(kExpertWidth, shape.ffn());
  const double scaling = shape.numbers[kScaling];
  if (scaling == static_cast<double>(RopeScaling::kNone) ||
      scaling == static_cast<double>(RopeScaling::kLinear))
    shape.numbers[kOriginalContext] = 0;  // these scalings do not read it
  else
    resolve_derived(kOriginalContext, shape.context_tokens);
}

}  // namespace sluice::engine
