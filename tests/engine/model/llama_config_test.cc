
#include <gmock/gmock.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/families/families.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The configuration of a small model of this type, changed by `more`.
json config_of(const char* model_type, const json& more = {}) {
  json config = {
      {"model_type", model_type},       {"vocab_size", 300},      {"hidden_size", 64},
      {"intermediate_size", 96},        {"num_hidden_layers", 4}, {"num_attention_heads", 4},
      {"max_position_embeddings", 128}, {"rms_norm_eps", 1e-5}};
  if (!more.is_null()) config.update(more);
  return config;
}

Result<HuggingFaceModel> read(const json& config) {
  return read_hugging_face_config(config.dump());
}

DecoderSpec shape_of(const json& config) {
  const auto model = read(config);
  EXPECT_TRUE(model.ok()) << model.error().message();
  if (!model.ok()) return {};
  const Status valid = validate(model->shape);
  EXPECT_TRUE(valid.ok()) << valid.error().message();
  return spec_of(model->shape);
}

std::string refusal(const json& config, ErrorCode code = ErrorCode::kInvalidArgument) {
  const auto model = read(config);
  if (model.ok()) return "accepted";
  EXPECT_EQ(model.error().code(), code);
  return model.error().message();
}

// Checkpoints store the place of the class in the list.
TEST(LlamaConfig, ArchitecturesAreTheTypes) {
  double place = 0;
  for (const std::string_view type : find_family("llama")->model_types()) {
    EXPECT_EQ(architecture(type), place) << type;
    const auto model = read(json{{"model_type", std::string(type)}});
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(model->shape.numbers.at("architecture"), place) << type;
    EXPECT_EQ(json::parse(family_of(model->shape).write_config(*model))["model_type"],
              std::string(type));
    ++place;
  }
  EXPECT_EQ(place, 10);
}

// What the Python package takes from the tables.
TEST(ModuleClasses, HaveTheKeysThatTheirFamilyReads) {
  std::map<std::string, ModuleClass> by_type;
  for (const ModuleClass& one : module_classes()) by_type[one.model_type] = one;
  EXPECT_EQ(by_type.at("gpt2").name, "GPT2LMHeadModel");
  EXPECT_THAT(by_type.at("gpt2").keys, testing::IsSupersetOf({"n_inner", "attn_pdrop", "n_head"}));
  EXPECT_THAT(by_type.at("qwen2").keys,
              testing::IsSupersetOf({"rope_parameters", "max_window_layers", "layer_types"}));
  EXPECT_THAT(by_type.at("qwen2").keys, testing::Not(testing::Contains("mlp_bias")));
  EXPECT_THAT(by_type.at("llama").keys, testing::Not(testing::Contains("")));
  EXPECT_FALSE(by_type.contains("qwen3_5"));  // it also sees images
}

TEST(LlamaConfig, EachTypeHasItsBiasesAndNorms) {
  const DecoderSpec llama = shape_of(config_of("llama"));
  EXPECT_FALSE(llama.block.attention.qkv_bias || llama.block.attention.output_bias ||
               llama.block.mlp.bias || llama.block.attention.head_norms);
  const DecoderSpec biased =
      shape_of(config_of("llama", {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.block.attention.qkv_bias && biased.block.attention.output_bias &&
              biased.block.mlp.bias);
  const DecoderSpec qwen2 = shape_of(config_of("qwen2", {{"num_key_value_heads", 2}}));
  EXPECT_TRUE(qwen2.block.attention.qkv_bias);
  EXPECT_FALSE(qwen2.block.attention.output_bias || qwen2.block.attention.head_norms);
  const DecoderSpec qwen3 = shape_of(config_of("qwen3", {{"num_key_value_heads", 2}}));
  EXPECT_TRUE(qwen3.block.attention.head_norms);
  EXPECT_FALSE(qwen3.block.attention.qkv_bias);
}

TEST(LlamaConfig, WhatAFileDoesNotSayIsItsClassDefault) {
  const DecoderSpec llama = shape_of(config_of("llama"));
  EXPECT_EQ(llama.block.attention.kv_heads, 4);
  EXPECT_EQ(llama.block.attention.head_dim, 16);
  EXPECT_FALSE(llama.tied);
  EXPECT_EQ(llama.block.attention.rope.theta, 10000);
  EXPECT_EQ(shape_of(config_of("mistral", {{"num_attention_heads", 16}})).block.attention.kv_heads,
            8);
  EXPECT_EQ(shape_of(config_of("mistral", {{"num_attention_heads", 16}})).window.tokens, 4096);
  EXPECT_EQ(shape_of(config_of("qwen3", {{"num_key_value_heads", 1}})).block.attention.head_dim,
            128);
  EXPECT_EQ(
      shape_of(config_of("qwen2", {{"num_key_value_heads", nullptr}})).block.attention.kv_heads, 4);
  const auto whole = read({{"model_type", "llama"}});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->shape.vocab, 32000);
  EXPECT_EQ(whole->special, (SpecialTokens{.begin = 1, .ends = {2}}));
  EXPECT_TRUE(read(config_of("qwen3"))->special.empty());
}

TEST(LlamaConfig, RotaryPositionsStandUnderBothNames) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  for (const json& config :
       {config_of("llama", {{"rope_theta", 500000.0}, {"rope_scaling", scaling}}),
        config_of("llama", {{"rope_parameters", parameters}}),
        config_of("llama", {{"rope_parameters", parameters}, {"rope_scaling", nullptr}})}) {
    const Rope rope = shape_of(config).block.attention.rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLlama3) << config;
    EXPECT_EQ(rope.theta, 500000);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.original_context, 64);
  }
  const Rope old =
      shape_of(config_of("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}))
          .block.attention.rope;
  EXPECT_EQ(shape_of(config_of("llama", {{"rope_scaling", json::object()},
                                         {"rope_parameters", {{"rope_theta", 7.0}}}}))
                .block.attention.rope.theta,
            7);
  EXPECT_EQ(old.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old.factor, 2);
  const Rope yarn = shape_of(config_of("qwen2", {{"num_key_value_heads", 4},
                                                 {"rope_scaling",
                                                  {{"type", "yarn"},
                                                   {"factor", 4.0},
                                                   {"original_max_position_embeddings", 32},
                                                   {"beta_fast", nullptr}}}}))
                        .block.attention.rope;
  EXPECT_EQ(yarn.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.beta_fast, 32);
  EXPECT_TRUE(yarn.truncate);
}

TEST(LlamaConfig, KnowsWhichLayersHaveAWindow) {
  const auto windows = [](const json& config) {
    const DecoderSpec shape = shape_of(config);
    std::string text;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer)
      text += shape.window.has(layer) ? "w" : "-";
    return text;
  };
  const json qwen = {{"num_key_value_heads", 4}, {"sliding_window", 8}};
  json on = qwen;
  on["use_sliding_window"] = true;
  EXPECT_EQ(windows(config_of("qwen2", qwen)), "----");
  EXPECT_EQ(windows(config_of("qwen2", on)), "----");  // from layer 28 on
  on["max_window_layers"] = 1;
  EXPECT_EQ(windows(config_of("qwen2", on)), "-www");
  constexpr const char* kFull = "full_attention";
  constexpr const char* kSliding = "sliding_attention";
  for (const auto& [types, expected] : std::vector<std::pair<json, std::string>>{
           {{kFull, kFull, kFull, kFull}, "----"},
           {{kSliding, kFull, kSliding, kFull}, "w-w-"},
           {{kFull, kSliding, kFull, kFull}, "-w--"},
           {{kFull, kSliding, kSliding, kFull}, "-ww-"},
           {{kSliding, kSliding, kSliding, kSliding}, "wwww"}}) {
    on["layer_types"] = types;
    EXPECT_EQ(windows(config_of("qwen3", on)), expected);
  }
  EXPECT_EQ(windows(config_of("mistral", {{"num_key_value_heads", 4}, {"sliding_window", 8}})),
            "wwww");
  EXPECT_EQ(
      windows(config_of("mistral", {{"num_key_value_heads", 4}, {"sliding_window", nullptr}})),
      "----");
  // Like a Ministral.
  const json mixed = {{"num_key_value_heads", 4},
                      {"sliding_window", 8},
                      {"architectures", {"MistralForCausalLM"}},
                      {"layer_types", {kSliding, kFull, kSliding, kFull}}};
  EXPECT_EQ(windows(config_of("mistral", mixed)), "w-w-");
  EXPECT_EQ(read(config_of("mistral", mixed))->shape.numbers.at("architecture"),
            architecture("ministral"));
}

TEST(LlamaConfig, WhatIsWrittenIsReadAgain) {
  for (const NamedShape& preset : model_presets()) {
    if (preset.shape.family != "llama") continue;
    const ModelFamily& family = family_of(preset.shape);
    const std::string text = family.write_config(
        {.shape = preset.shape, .special = {.begin = 1, .ends = {2, 5}}, .notes = {}});
    const auto back = read_hugging_face_config(text);
    ASSERT_TRUE(back.ok()) << preset.name << back.error().message();
    EXPECT_EQ(back->shape.numbers, preset.shape.numbers) << preset.name << text;
    EXPECT_EQ(back->shape.ffn(), preset.shape.ffn());
    EXPECT_EQ(back->shape.layers, preset.shape.layers);
    EXPECT_EQ(back->shape.vocab, preset.shape.vocab);
    EXPECT_EQ(back->special, (SpecialTokens{.begin = 1, .ends = {2, 5}}));
  }
}

TEST(LlamaConfig, APhi3HasPackedProductsAndMayRotatePartsOfHeads) {
  for (const json& config :
       {config_of("phi3", {{"partial_rotary_factor", 0.75}}),
        config_of("phi3", {{"rope_parameters", {{"partial_rotary_factor", 0.75}}}}),
        config_of("phi3",
                  {{"partial_rotary_factor", 0.5},
                   {"rope_scaling", {{"type", "default"}, {"partial_rotary_factor", 0.75}}}})}) {
    const auto model = read(config);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const DecoderSpec shape = spec_of(model->shape);
    EXPECT_EQ(shape.block.attention.rope.rotated(shape.block.attention.head_dim), 12) << config;
    const auto again = read(json::parse(family_of(model->shape).write_config(*model)));
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(again->shape.numbers, model->shape.numbers);
  }
  const auto plain = read(config_of("phi3", {{"vocab_size", 32064}}));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->special, (SpecialTokens{.begin = 1, .ends = {32000}, .padding = 32000}));
  EXPECT_EQ(spec_of(plain->shape).window.tokens, 0);
  EXPECT_EQ(spec_of(plain->shape).block.attention.rope.share, 1);
  const UnitLayout block = model_layout({.shape = plain->shape}).layout(1);
  EXPECT_EQ(block.parameters[0].name, "layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(block.parameters[0].shape, (std::vector<std::int64_t>{192, 64}));
  EXPECT_EQ(block.parameters[2].name, "layers.0.mlp.gate_up_proj.weight");
  EXPECT_EQ(block.parameters[2].shape, (std::vector<std::int64_t>{192, 64}));
  EXPECT_EQ(block.parameters.size(), 6U);
}

// transformers' strict classes refuse null, but where it means a value derived from others.
TEST(LlamaConfig, RefusesNullWhereTransformersDoes) {
  for (const char* const type : {"llama", "mistral", "qwen2", "qwen3", "phi3"})
    for (const char* const key : {"vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps",
                                  "num_attention_heads", "tie_word_embeddings", "hidden_act"})
      EXPECT_THAT(refusal(config_of(type, {{key, nullptr}})),
                  HasSubstr("\"" + std::string(key) + "\" is null"))
          << type;
  for (const char* const type : {"llama", "qwen2", "qwen3", "phi3"})
    EXPECT_EQ(refusal(config_of(type, {{"num_key_value_heads", nullptr}})), "accepted") << type;
  EXPECT_THAT(refusal(config_of("mistral", {{"num_key_value_heads", nullptr}})),
              HasSubstr("num_key_value_heads"));
  EXPECT_EQ(shape_of(config_of("llama", {{"head_dim", nullptr}})).block.attention.head_dim, 16);
  EXPECT_THAT(refusal(config_of("qwen3", {{"head_dim", nullptr}})), HasSubstr("head_dim"));
  EXPECT_THAT(refusal(config_of("qwen2", {{"use_sliding_window", nullptr}})),
              HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal(config_of("phi3", {{"partial_rotary_factor", nullptr}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_EQ(refusal(config_of("phi3", {{"sliding_window", nullptr}})), "accepted");
}

// transformers' classes with one window for all layers do not read layer_types.
TEST(LlamaConfig, LayerTypesMustSayWhatIsComputed) {
  const json full(4, "full_attention");
  const json sliding(4, "sliding_attention");
  json mixed = full;
  mixed[1] = "sliding_attention";
  for (const char* const type : {"llama", "phi3"}) {
    EXPECT_EQ(refusal(config_of(type, {{"layer_types", full}})), "accepted");
    for (const json& other : {sliding, mixed})
      EXPECT_THAT(refusal(config_of(type, {{"layer_types", other}})), HasSubstr("layer_types"));
  }
  EXPECT_EQ(refusal(config_of("phi3", {{"sliding_window", 9}, {"layer_types", sliding}})),
            "accepted");
  for (const json& other : {full, mixed})
    EXPECT_THAT(refusal(config_of("phi3", {{"sliding_window", 9}, {"layer_types", other}})),
                HasSubstr("\"sliding_attention\" in all layers"));
  EXPECT_THAT(
      refusal(config_of("phi3", {{"layer_types", {"full_attention"}}}), ErrorCode::kCorrupt),
      HasSubstr("4 layers"));
}

TEST(LlamaConfig, RefusesWhatAPhi3CannotBe) {
  EXPECT_THAT(refusal(config_of("phi3", {{"resid_pdrop", 0.1}})), HasSubstr("resid_pdrop"));
  for (const char* const type : {"linear", "llama3", "dynamic"})
    EXPECT_THAT(
        refusal(config_of("phi3", {{"rope_scaling", {{"rope_type", type}, {"factor", 2.0}}}})),
        HasSubstr("\"rope_type\" is"))
        << type;
  for (const double share : {0.0, 0.1, 0.2}) {  // 0, 1 and 3 of 16 numbers
    const auto model = read(config_of("phi3", {{"partial_rotary_factor", share}}));
    ASSERT_TRUE(model.ok());
    EXPECT_THAT(validate(model->shape).error().message(), HasSubstr("rope_share rotates"));
  }
  EXPECT_FALSE(read(config_of("phi3", {{"partial_rotary_factor", 1.5}})).ok());
  ModelShape llama = read(config_of("llama"))->shape;
  llama.numbers["rope_share"] = 0.5;
  EXPECT_THAT(validate(llama).error().message(), HasSubstr("rope_share is for"));
}

// transformers' Ministral always makes a windowed mask, used or not, and fails without a window.
TEST(LlamaConfig, AMinistralWithoutWindowsIsWrittenWithOneThatNoLayerHas) {
  const json none = {
      {"num_key_value_heads", 4},
      {"sliding_window", nullptr},
      {"layer_types", {"full_attention", "full_attention", "full_attention", "full_attention"}}};
  for (const char* const type : {"ministral", "mistral"}) {
    const auto model = read(config_of(type, none));
    ASSERT_TRUE(model.ok()) << model.error().message();
    const json written = json::parse(family_of(model->shape).write_config(*model));
    EXPECT_EQ(written["model_type"], "ministral");
    EXPECT_EQ(written["sliding_window"], 128);
    EXPECT_EQ(written["layer_types"], none["layer_types"]);
    const auto again = read(written);
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(again->shape.numbers, model->shape.numbers);
  }
}

TEST(LlamaConfig, RefusesByKeyAndValueWhatItDoesNotCompute) {
  EXPECT_THAT(refusal(config_of("llama", {{"hidden_act", "gelu"}})),
              HasSubstr(R"("hidden_act" is "gelu", but Sluice supports Llamas with "silu" only)"));
  EXPECT_THAT(refusal(config_of("llama", {{"rope_scaling", {{"rope_type", "longrope"}}}})),
              HasSubstr(R"("rope_type" is "longrope")"));
  EXPECT_THAT(
      refusal(config_of("qwen2", {{"rope_scaling",
                                   {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}}}})),
      HasSubstr("\"mrope_section\" is [16,24,24]"));
  EXPECT_THAT(refusal(config_of("llama", {{"partial_rotary_factor", 0.5}})),
              HasSubstr("\"partial_rotary_factor\" is 0.5"));
  EXPECT_THAT(refusal(config_of("llama", {{"quantization_config", {{"bits", 4}}}})),
              HasSubstr(R"("quantization_config" is {"bits":4})"));
  EXPECT_THAT(refusal(config_of("llama", {{"architectures", {"LlamaForSequenceClassification"}}})),
              HasSubstr("\"architectures\" is [\"LlamaForSequenceClassification\"]"));
  EXPECT_THAT(
      refusal(config_of(
          "qwen3", {{"use_sliding_window", true},
                    {"layer_types",
                     {"full_attention", "linear_attention", "full_attention", "full_attention"}}})),
      HasSubstr("\"linear_attention\""));
  EXPECT_THAT(
      refusal(config_of("qwen3", {{"layer_types", {"full_attention"}}}), ErrorCode::kCorrupt),
      HasSubstr("4 layers"));
  EXPECT_THAT(refusal(config_of("qwen3", {{"is_causal", false}})),
              HasSubstr("\"is_causal\" is false"));
  EXPECT_THAT(refusal(config_of("llama", {{"rope_parameters",
                                           {{"full_attention", {{"rope_type", "default"}}}}}})),
              HasSubstr("one object"));
  EXPECT_THAT(refusal({{"model_type", "falcon"}}), HasSubstr("\"model_type\" is \"falcon\""));
}

// Like transformers, which accepts any number and depends on the model_type.
TEST(LlamaConfig, TakesOddEpsilonsAndTheFirstLlamasName) {
  for (const double epsilon : {0.0, 1e-15, 4.0})
    EXPECT_EQ(shape_of(config_of("llama", {{"rms_norm_eps", epsilon}})).block.epsilon, epsilon);
  for (const char* name : {"LLaMAForCausalLM", "LlamaForCausalLM", "llamamodel"})
    EXPECT_EQ(refusal(config_of("llama", {{"architectures", {name}}})), "accepted") << name;
}

TEST(LlamaConfig, IsBoundedInDepth) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto model = read_hugging_face_config(R"({"model_type": "llama", "x": )" + deep + "}");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(model.error().message(), HasSubstr("64 levels"));
}

TEST(LlamaConfig, RefusesNumbersThatAreNone) {
  for (const json& wrong : std::vector<json>{
           {{"num_hidden_layers", 0}},
           {{"hidden_size", "64"}},
           {{"vocab_size", -1}},
           {{"rms_norm_eps", "small"}},
           {{"rms_norm_eps", -1}},
           {{"tie_word_embeddings", 1}},
           {{"rope_theta", 0}},
           {{"rope_parameters", 7}},
           {{"rope_parameters", {{"rope_theta", "a"}}}},
           {{"rope_scaling", {{"rope_type", "linear"}}}},
           {{"rope_scaling", {{"rope_type", "yarn"}}}},
           {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"attention_factor", 0}}}},
           {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}}},
           {{"attention_dropout", 2}}}) {
    EXPECT_FALSE(read(config_of("llama", wrong)).ok()) << wrong;
  }
  // Numbers with which no model can be made.
  for (const json& wrong :
       std::vector<json>{{{"num_key_value_heads", 3}}, {{"head_dim", 7}}, {{"head_dim", 512}}}) {
    const auto model = read(config_of("llama", wrong));
    ASSERT_TRUE(model.ok()) << wrong;
    EXPECT_FALSE(validate(model->shape).ok()) << wrong;
  }
}

// Replaces a value at any place of the file. The result is a model, valid or not, or a sentence;
// layouts are made of those that are valid and small enough.
TEST(LlamaConfig, MutatedFilesAreReadOrRefusedWithASentence) {
  const std::vector<json> values = {nullptr,
                                    true,
                                    -1,
                                    0,
                                    1,
                                    2.5,
                                    1e300,
                                    "yarn",
                                    "",
                                    "x",
                                    json::array(),
                                    json::object(),
                                    1LL << 62,
                                    {{"rope_type", "yarn"}},
                                    {{"full_attention", 3}}};
  std::mt19937 draw(9);
  int read_count = 0;
  for (const char* const type :
       {"llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "smollm3"}) {
    const auto model = read(config_of(type, {{"num_key_value_heads", 2}}));
    ASSERT_TRUE(model.ok());
    const json whole = json::parse(family_of(model->shape).write_config(*model));
    for (int i = 0; i < 2000; ++i) {
      json config = whole;
      for (unsigned changes = 1 + draw() % 3; changes > 0; --changes) {
        auto entry = config.begin();
        std::advance(entry, static_cast<std::ptrdiff_t>(draw() % config.size()));
        if (entry->is_object() && !entry->empty() && draw() % 2 == 0)
          entry->front() = values[draw() % values.size()];
        else
          *entry = values[draw() % values.size()];
      }
      config["model_type"] = type;
      const auto changed = read(config);
      if (!changed.ok()) {
        EXPECT_GT(changed.error().message().size(), 15U) << config;
        continue;
      }
      ++read_count;
      const Status valid = validate(changed->shape);
      if (!valid.ok()) {
        EXPECT_THAT(valid.error().message(), HasSubstr("cannot be built: "));
        continue;
      }
      if (changed->shape.layers < 100) {
        EXPECT_GT(model_layout({.shape = changed->shape}).units(), 2);
      }
    }
  }
  EXPECT_GT(read_count, 500);
}

}  // namespace
}  // namespace sluice::engine
