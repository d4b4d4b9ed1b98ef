// Llama and its relatives: Mistral, Ministral, Qwen2, Qwen3, Phi-3, SmolLM3, and with experts
// Qwen3-MoE, Mixtral and gpt-oss.
#include <string>

#include "engine/families/expert_keys.h"
#include "engine/families/family_table.h"
#include "engine/families/layer_keys.h"
#include "engine/families/llama_presets.h"
#include "engine/families/rope_keys.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr std::string_view kWithExperts = "qwen3_moe|mixtral|gpt_oss";
constexpr std::string_view kWithFfnExperts = "mixtral|gpt_oss";  // as wide as model.ffn_multiplier
constexpr std::string_view kWithOneWindow = "mistral|qwen3_moe|mixtral|phi3";
constexpr std::string_view kWithWindows = "qwen2|qwen3|ministral|gpt_oss|smollm3";
constexpr std::string_view kWithAnyWindow =
    "mistral|qwen3_moe|mixtral|phi3|qwen2|qwen3|ministral|gpt_oss|smollm3";

// ---- names -------------------------------------------------------------------------------------

constexpr BlockNames with_experts(std::string_view router, std::string_view experts,
                                  std::array<std::string_view, 2> in, std::string_view out) {
  BlockNames names = kUsualNames;
  names.router = router;
  names.experts = experts;
  names.mlp_in = in;
  names.mlp_out = out;
  names.expert_adapters = "mlp.experts";
  return names;
}

constexpr BlockNames kQwen3MoeNames =
    with_experts("mlp.gate", "mlp.experts", {"gate_proj", "up_proj"}, "down_proj");
constexpr BlockNames kMixtralNames =
    with_experts("block_sparse_moe.gate", "block_sparse_moe.experts", {"w1", "w3"}, "w2");
constexpr BlockNames kGptOssNames = [] {
  BlockNames names =
      with_experts("mlp.router", "mlp.experts", {"gate_proj", "up_proj"}, "down_proj");
  names.expert_biases = {"mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"};
  names.sinks = "self_attn.sinks";
  return names;
}();
constexpr BlockNames kPhi3Names = [] {
  BlockNames names = kUsualNames;
  names.qkv = {"self_attn.qkv_proj"};
  names.mlp_in = {"mlp.gate_up_proj"};
  return names;
}();

// Files of gpt-oss have such tensors, too.
constexpr auto kQwen3MoeStacks =
    expert_stacks("mlp.experts", {"gate_proj", "up_proj"}, "down_proj");
constexpr auto kMixtralStacks = expert_stacks("block_sparse_moe.experts", {"w1", "w3"}, "w2");
constexpr auto kGptOssStacks = expert_stacks("mlp.experts", {"gate_proj", "up_proj"}, "down_proj",
                                             ExpertStack::Order::kInTurn);

// Older files contain this buffer, which can be computed. It belongs to each block, or to the
// model.
bool is_rotary_buffer(std::string_view name) {
  return name == "rotary_emb.inv_freq" || name.ends_with(".rotary_emb.inv_freq");
}

// ---- classes -----------------------------------------------------------------------------------

FamilyClass type(std::string_view model_type, std::string_view architecture,
                 std::string_view models, std::vector<std::pair<std::string_view, Json>> defaults) {
  return {.model_type = model_type,
          .architecture = architecture,
          .models = models,
          .names = &kUsualNames,
          .defaults = std::move(defaults),
          .scalings = "none|linear|dynamic|yarn|llama3"};
}

FamilyClass with_tokens(FamilyClass type, std::int64_t end, std::int64_t padding = -1) {
  type.begin = 1;
  type.end = end;
  type.padding = padding;
  return type;
}

FamilyClass mistral_like(std::string_view model_type, std::string_view architecture,
                         std::string_view models) {
  return with_tokens(type(model_type, architecture, models,
                          {{"vocab_size", 32000},
                           {"intermediate_size", 14336},
                           {"max_position_embeddings", 131072},
                           {"num_key_value_heads", 8},
                           {"sliding_window", 4096}}),
                     2);
}

std::vector<std::pair<std::string_view, Json>> qwen_defaults() {
  return {{"vocab_size", 151936},
          {"intermediate_size", 22016},
          {"max_position_embeddings", 32768},
          {"num_key_value_heads", 32},
          {"sliding_window", 4096}};
}

FamilyClass mixtral() {
  FamilyClass made = mistral_like("mixtral", "MixtralForCausalLM", "Mixtrals");
  made.names = &kMixtralNames;
  made.stacks = kMixtralStacks;
  made.defaults.pop_back();  // no window
  for (const auto& [key, value] :
       std::initializer_list<std::pair<std::string_view, Json>>{{"rms_norm_eps", 1e-5},
                                                                {"rope_theta", 1e6},
                                                                {"num_local_experts", 8},
                                                                {"num_experts_per_tok", 2}})
    made.defaults.emplace_back(key, value);
  return made;
}

FamilyClass qwen3_moe() {
  FamilyClass made = type("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3-MoEs",
                          {{"vocab_size", 151936},
                           {"hidden_size", 2048},
                           {"num_hidden_layers", 24},
                           {"intermediate_size", 6144},
                           {"max_position_embeddings", 32768},
                           {"num_key_value_heads", 4},
                           {"sliding_window", 4096},
                           {"num_local_experts", 128},
                           {"num_experts_per_tok", 8}});
  made.names = &kQwen3MoeNames;
  made.stacks = kQwen3MoeStacks;
  return made;
}

FamilyClass gpt_oss() {
  FamilyClass made = type("gpt_oss", "GptOssForCausalLM", "GptOsses",
                          {{"vocab_size", 201088},
                           {"hidden_size", 2880},
                           {"num_hidden_layers", 36},
                           {"num_attention_heads", 64},
                           {"intermediate_size", 2880},
                           {"max_position_embeddings", 131072},
                           {"num_key_value_heads", 8},
                           {"head_dim", 64},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 150000},
                           {"sliding_window", 128},
                           {"attention_bias", true},
                           {"num_local_experts", 128},
                           {"num_experts_per_tok", 4}});
  made.rope = {{"rope_type", "yarn"}, {"factor", 32.0},
               {"beta_fast", 32.0},   {"beta_slow", 1.0},
               {"truncate", false},   {"original_max_position_embeddings", 4096}};
  made.names = &kGptOssNames;
  made.windows_alternate = true;
  made.reads_mxfp4 = true;
  made.stacks = kGptOssStacks;
  made.exports_stacks = true;
  return made;
}

FamilyClass phi3() {
  FamilyClass made = with_tokens(type("phi3", "Phi3ForCausalLM", "Phi-3s",
                                      {{"vocab_size", 32064},
                                       {"hidden_size", 3072},
                                       {"intermediate_size", 8192},
                                       {"max_position_embeddings", 4096},
                                       {"original_max_position_embeddings", 4096},
                                       {"rms_norm_eps", 1e-5}}),
                                 32000, 32000);
  made.names = &kPhi3Names;
  made.scalings = "none|longrope";
  made.rotates_parts = true;
  return made;
}

FamilyClass smollm3() {
  FamilyClass made = type("smollm3", "SmolLM3ForCausalLM", "SmolLM3s",
                          {{"vocab_size", 128256},
                           {"hidden_size", 2048},
                           {"num_hidden_layers", 36},
                           {"num_attention_heads", 16},
                           {"intermediate_size", 11008},
                           {"max_position_embeddings", 32768},
                           {"num_key_value_heads", 4},
                           {"rope_theta", 2e6},
                           {"tie_word_embeddings", true}});
  made.begin = 128000;
  made.end = 128001;
  made.padding = 128004;
  return made;
}

// By the number architecture.
std::vector<FamilyClass> classes() {
  auto qwen3_defaults = qwen_defaults();
  qwen3_defaults.emplace_back("head_dim", 128);
  FamilyClass mistral = mistral_like("mistral", "MistralForCausalLM", "Mistrals");
  // transformers (AutoConfig, since 5.0) makes a Ministral of a Mistral that names the layers with
  // a window, because its Mistral has the same window in all layers.
  mistral.by_layer = "ministral";
  return {with_tokens(type("llama", "LlamaForCausalLM", "Llamas",
                           {{"vocab_size", 32000},
                            {"intermediate_size", 11008},
                            {"max_position_embeddings", 2048}}),
                      2),
          mistral,
          type("qwen2", "Qwen2ForCausalLM", "Qwen2s", qwen_defaults()),
          type("qwen3", "Qwen3ForCausalLM", "Qwen3s", qwen3_defaults),
          mistral_like("ministral", "MinistralForCausalLM", "Ministrals"),
          qwen3_moe(),
          mixtral(),
          gpt_oss(),
          phi3(),
          smollm3()};
}

// ---- keys --------------------------------------------------------------------------------------

ConfigRow of(ConfigRow row, std::string_view classes, ConfigNull null = ConfigNull::kRefused) {
  row.classes = classes;
  row.null = null;
  return row;
}

ConfigRow dropout_row(std::string_view classes, ConfigNull null = ConfigNull::kRefused) {
  return of({.key = "attention_dropout", .dropout = &ModelShape::dropout}, classes, null);
}

ConfigRow head_dim_row(std::string_view classes, ConfigNull null) {
  ConfigRow row = {
      .key = "head_dim",
      .number = count_number("model.head_dim", 0, "width of a head; 0: model.hidden / model.heads"),
      .resolve = [](const ModelShape& shape, double value) {
        if (value != 0 || shape.heads <= 0) return value;
        const std::int64_t width = shape.hidden / shape.heads;
        return static_cast<double>(width);
      }};
  return of(std::move(row), classes, null);
}

ConfigRow share_row() {
  ConfigRow row = rope_share_row(1, ConfigUse::kWritten);
  row.number = later(row.number);
  return of(std::move(row), "phi3");
}

ConfigRow experts_row(std::string_view key, std::string_view classes, ConfigNull null,
                      ConfigUse use = ConfigUse::kReadAndWritten) {
  ConfigRow row = {
      .key = key,
      .number = later(count_number("model.experts", 0,
                                   "small feed-forward layers in each block, of which a router "
                                   "chooses experts_per_token for each token (num_experts), for "
                                   "qwen3_moe, mixtral and gpt_oss")),
      .use = use};
  return of(std::move(row), classes, null);
}

// Dynamic scaling begins past max_position_embeddings; otherwise the key only records the context.
const ConfigPart kContext = {.write = [](const ShapeReader& of, Json& json) {
  const bool grows = of.number("rope_scaling") == static_cast<double>(RopeScaling::kDynamic);
  json["max_position_embeddings"] =
      grows ? of.count("rope_original_context") : of.shape().context_tokens;
}};

std::vector<ConfigRow> expert_rows() {
  constexpr auto kMissing = ConfigNull::kMissing;
  return {
      experts_row("num_local_experts", kWithFfnExperts, ConfigNull::kRefused),
      experts_row("num_local_experts", "qwen3_moe", kMissing),
      experts_row("num_experts", kWithFfnExperts, kMissing, ConfigUse::kRead),
      {.key = "num_experts_per_tok",
       .number = later(count_number("model.experts_per_token", 0,
                                    "experts that compute each token (num_experts_per_tok)")),
       .classes = kWithExperts},
      of(only_row("router_jitter_noise", {0.0}, ConfigUse::kReadAndWritten), "mixtral"),
      of(only_row("swiglu_alpha", {1.702}, ConfigUse::kReadAndWritten), "gpt_oss"),
      of(only_row("swiglu_limit", {7.0}, ConfigUse::kReadAndWritten), "gpt_oss"),
      // The name that programs other than transformers read.
      experts_row("num_experts", "qwen3_moe", ConfigNull::kRefused),
      {.key = "moe_intermediate_size",
       .number = later(count_number("model.expert_width", 0,
                                    "for qwen3_moe: width of an expert (moe_intermediate_size); "
                                    "0: model.ffn_multiplier times model.hidden, which mixtral and "
                                    "gpt_oss always have")),
       .of_class = 768,
       .classes = "qwen3_moe",
       .resolve =
           [](const ModelShape& shape, double value) {
             return value == 0 ? static_cast<double>(shape.ffn()) : value;
           }},
      {.key = "norm_topk_prob",
       .number = later(switch_number("model.norm_topk_prob", false,
                                     "for qwen3_moe: divide the weights of a token's experts by "
                                     "their sum, as mixtral and gpt_oss always do")),
       .classes = "qwen3_moe"},
      of(only_row("decoder_sparse_step", {1}, ConfigUse::kReadAndWritten), "qwen3_moe"),
      of(only_row("mlp_only_layers", {Json::array(), Json()}, ConfigUse::kReadAndWritten),
         "qwen3_moe")};
}

std::vector<ConfigRow> rows() {
  std::vector<ConfigRow> rows = {
      {.key = "model_type",
       .number = {.key = "model.architecture",
                  .choices = kLlamaArchitectures,
                  .meaning = "architecture in transformers, which decides which biases and norms "
                             "are possible"},
       .use = ConfigUse::kOfPart},
      size_row("vocab_size", &ModelShape::vocab, 0),
      size_row("hidden_size", &ModelShape::hidden, 4096),
      size_row("intermediate_size", &ModelShape::ffn_hidden, 0),
      size_row("num_hidden_layers", &ModelShape::layers, 32),
      size_row("num_attention_heads", &ModelShape::heads, 32),
      of(kv_heads_row(), "llama|qwen2|qwen3|phi3|smollm3", ConfigNull::kDerived),
      of(kv_heads_row(), "mistral|ministral|qwen3_moe|mixtral|gpt_oss"),
      head_dim_row("llama|mistral|ministral|mixtral|qwen2|qwen3_moe|phi3", ConfigNull::kDerived),
      head_dim_row("qwen3|gpt_oss|smollm3", ConfigNull::kRefused),
      only_row("hidden_act", {"silu", "swish"}, ConfigUse::kReadAndWritten),
      {.key = "max_position_embeddings", .size = &ModelShape::context_tokens, .part = kContext},
      epsilon_row(1e-6),
      tied_row(false),
      dropout_row("llama", ConfigNull::kMissing),
      dropout_row("mistral|qwen2|qwen3|ministral|qwen3_moe|mixtral|gpt_oss|phi3|smollm3"),
      part_row(kRopePart),
      attention_bias_row("llama|qwen3|qwen3_moe|gpt_oss|smollm3",
                         "biases in attention's linear layers, for llama, qwen3, qwen3_moe, "
                         "gpt_oss and smollm3; qwen2 always has those of queries, keys and values"),
      share_row(),
      {.key = "mlp_bias",
       .number = switch_number("model.mlp_bias", false,
                               "biases in the feed-forward, for llama and smollm3"),
       .classes = "llama|smollm3"},
      only_row("is_causal", {true}),
      of(only_row("resid_pdrop", {0.0}), "phi3")};
  const auto add = [&](const std::vector<ConfigRow>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  add(expert_rows());
  add(balance_rows(kWithExperts));
  add({part_row(kFullLayersPart, "llama"), part_row(kUnrotatedPart, "smollm3"),
       part_row(kWindowPart, kWithOneWindow), part_row(kWindowsPart, kWithWindows),
       unrotated_row("smollm3")});
  add(window_rows(kWithAnyWindow, kWithWindows));
  add(rope_rows());
  return rows;
}

// ---- the model ---------------------------------------------------------------------------------

// All 0 in an architecture without experts.
ExpertsSpec experts(const ShapeReader& of) {
  if (!of.is(kWithExperts)) return {};
  const bool of_ffn = of.is(kWithFfnExperts);
  const bool is_gpt_oss = of.is("gpt_oss");
  const std::int64_t width = of.count("expert_width");
  return {.count = of.count("experts"),
          .per_token = of.count("experts_per_token"),
          .width = width == 0 || of_ffn ? of.shape().ffn() : width,
          .renormalises = of_ffn || of.on("norm_topk_prob"),
          .fp32_weights = of.is("mixtral"),
          .bias = is_gpt_oss,
          .in_turn = is_gpt_oss,
          // swiglu_alpha and swiglu_limit.
          .gate = is_gpt_oss ? ClampedGate{.alpha = 1.702, .limit = 7} : ClampedGate{}};
}

DecoderSpec spec(const ShapeReader& of) {
  DecoderSpec spec = usual_spec(of);
  BlockSpec& block = spec.block;
  if (of.is("gpt_oss")) block.norm = NormKind::kRmsWide;
  if (of.is("qwen2")) block.attention.qkv_bias = true;
  block.attention.head_norms = of.is("qwen3|qwen3_moe");
  block.attention.sinks = of.is("gpt_oss");
  block.mlp.bias = of.on("mlp_bias");
  block.experts = experts(of);
  spec.window = window_of(of);
  spec.unrotated_interval = of.count("unrotated_interval");
  return spec;
}

Status check(const ShapeReader& of, const DecoderSpec& spec) {
  const auto text = [](std::int64_t number) { return std::to_string(number); };
  const ModelShape& shape = of.shape();
  if (of.is("llama") && shape.hidden % shape.heads != 0)
    return cannot_build("hidden " + text(shape.hidden) + " cannot be divided among " +
                        text(shape.heads) +
                        " heads, as transformers requires for llama: make it a multiple of that");
  const ShapeNumber scalings = {.choices = kRopeScalings};
  const std::string scaling = scalings.text(of.number("rope_scaling"));
  if (!is_among(scaling, of.type().scalings))
    return cannot_build("rope_scaling " + scaling + " is for other architectures, not " +
                        std::string(of.type().model_type));
  if (!of.is(kWithExperts)) return {};
  return check_experts(spec.block.experts);
}

}  // namespace

FamilyTable llama_table() {
  return {.name = kLlamaFamily,
          .classes = classes(),
          .rows = rows(),
          .presets = llama_presets(),
          .lists = rope_lists(),
          .defaults = {.dropout = 0, .ffn_multiplier = 3.5},  // Llama 3's width
          .spec = &spec,
          .check = &check,
          .is_buffer = &is_rotary_buffer,
          .writes_older_dtype = true};
}

}  // namespace sluice::engine
