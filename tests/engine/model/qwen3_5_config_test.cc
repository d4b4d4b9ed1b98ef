// Qwen3.5's config.json, sizes, names in files and refusals.

#include <gmock/gmock.h>

#include <string>

#include "tests/engine/model/config_reading.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The file that transformers 5.24 saves for a small model.
const json& saved() {
  static const json text = json::parse(R"({
    "architectures": ["Qwen3_5ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": null, "dtype": "float32", "eos_token_id": 90, "head_dim": 16,
    "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 72,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 8, "max_position_embeddings": 64,
    "model_type": "qwen3_5_text", "num_attention_heads": 4, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "pad_token_id": null, "rms_norm_eps": 1e-06,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0,
                        "rope_type": "default"},
    "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
    "vocab_size": 101})");
  return text;
}

// The same of a model with experts.
const json& saved_moe() {
  static const json text = [] {
    json config = saved();
    config.erase("intermediate_size");
    config.update({{"architectures", {"Qwen3_5MoeForCausalLM"}},
                   {"model_type", "qwen3_5_moe_text"},
                   {"moe_intermediate_size", 20},
                   {"num_experts", 6},
                   {"num_experts_per_tok", 3},
                   {"output_router_logits", false},
                   {"router_aux_loss_coef", 0.001},
                   {"shared_expert_intermediate_size", 28}});
    return config;
  }();
  return text;
}

json changed(const json& more, const json& of = saved()) { return with(of, more); }

json with_images(const json& text, const json& more = json::object()) {
  if (text["model_type"] == "qwen3_5_moe_text") {
    json config = {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                   {"model_type", "qwen3_5_moe"},
                   {"text_config", text},
                   {"vision_config", json::object()}};
    config["text_config"].erase("architectures");
    return config;
  }
  json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                 {"image_token_id", 7},
                 {"model_type", "qwen3_5"},
                 {"text_config", text},
                 {"tie_word_embeddings", false},
                 {"vision_config", {{"model_type", "qwen3_5_vision"}}}};
  config["text_config"].erase("architectures");
  config.update(more);
  return config;
}

TEST(Qwen35Config, ReadsWhatTransformersSaves) {
  const HuggingFaceModel model = read_valid(saved());
  EXPECT_THAT(model.notes, IsEmpty());
  EXPECT_THAT(model.special.ends, ElementsAre(90));
  const DecoderSpec spec = spec_of(model.shape);
  EXPECT_EQ(spec.attention_interval, 2);
  EXPECT_FALSE(spec.attends(0));
  EXPECT_TRUE(spec.attends(1));
  EXPECT_TRUE(spec.block_at(0).delta.exists());
  EXPECT_FALSE(spec.block_at(1).delta.exists());
  EXPECT_EQ(spec.delta.heads.qkv_width(), 2 * 24 + 32);
  EXPECT_EQ(spec.delta.taps, 4);
  EXPECT_EQ(spec.block.attention.rope.rotated(16), 4);
  EXPECT_EQ(spec.block.attention.rope.theta, 10000);
  EXPECT_EQ(spec.block.attention.in_width(), 2 * 64 + 2 * 32);
  EXPECT_FALSE(spec.tied);
}

TEST(Qwen35Config, WritesWhatItReads) {
  for (const json& config :
       {saved(), changed({{"tie_word_embeddings", true}, {"attention_bias", true}}),
        changed(
            {{"layer_types", {"full_attention", "full_attention", "full_attention"}},
             {"num_key_value_heads", 1},
             {"rope_parameters",
              {{"rope_type", "default"}, {"rope_theta", 5e6}, {"partial_rotary_factor", 0.5}}}})})
    expect_writes_what_it_reads(config);
}

TEST(Qwen35Config, HasTheDefaultsOfTransformersClass) {
  const HuggingFaceModel model = read_valid({{"model_type", "qwen3_5_text"}});
  EXPECT_EQ(model.shape.layers, 32);
  EXPECT_EQ(model.shape.hidden, 4096);
  EXPECT_EQ(model.shape.vocab, 248320);
  const DecoderSpec spec = spec_of(model.shape);
  EXPECT_EQ(spec.attention_interval, 4);
  EXPECT_EQ(spec.block.attention.kv_heads, 4);
  EXPECT_EQ(spec.block.attention.rope.rotated(256), 64);
  EXPECT_EQ(spec.block.attention.rope.theta, 10000);
  EXPECT_EQ(spec.delta.heads.value_heads, 32);
}

TEST(Qwen35Config, OfAModelThatSeesImagesReadsTheText) {
  json text = saved();
  text["rope_parameters"].update({{"mrope_interleaved", true}, {"mrope_section", {1, 1, 0}}});
  const HuggingFaceModel model = read_valid(with_images(text));
  EXPECT_EQ(model.shape.numbers, read_valid(saved()).shape.numbers);
  ASSERT_EQ(model.notes.size(), 1U);
  EXPECT_THAT(model.notes[0], HasSubstr("vision encoder"));
  EXPECT_THAT(model.special.ends, ElementsAre(90));
  EXPECT_THAT(refused(with_images(text, {{"tie_word_embeddings", true}}), ErrorCode::kCorrupt),
              HasSubstr("tie_word_embeddings"));
  text.erase("tie_word_embeddings");
  EXPECT_TRUE(spec_of(read_valid(with_images(text, {{"tie_word_embeddings", true}})).shape).tied);
  EXPECT_THAT(refused({{"model_type", "qwen3_5"}}, ErrorCode::kCorrupt), HasSubstr("text_config"));
  EXPECT_THAT(refused({{"model_type", "qwen3_5"}, {"text_config", 1}}, ErrorCode::kCorrupt),
              HasSubstr("text_config"));
}

TEST(Qwen35Config, RefusesOtherModelsByKey) {
  const std::pair<const char*, json> others[] = {
      {"hidden_act", "gelu"},
      {"is_causal", false},
      {"attn_output_gate", false},
      {"output_gate_type", "sigmoid"},
      {"architectures", {"Qwen3_5ForSequenceClassification"}},
      {"quantization_config", {{"bits", 4}}},
      {"layer_types", {"full_attention", "linear_attention", "linear_attention"}},
      {"layer_types", {"linear_attention", "sliding_attention", "linear_attention"}},
      {"rope_type", {{"rope_type", "yarn"}, {"factor", 2.0}}}};
  for (const auto& [key, value] : others) {
    const bool is_rope = std::string(key) == "rope_type";
    EXPECT_THAT(refused(changed({{is_rope ? "rope_parameters" : key, value}})), HasSubstr(key));
  }
  EXPECT_THAT(refused(changed({{"partial_rotary_factor", nullptr},
                               {"rope_parameters", {{"rope_type", "default"}}}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(refused(changed({{"rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}}}})),
              HasSubstr("one object"));
  const std::pair<const char*, json> broken[] = {{"layer_types", {"full_attention"}},
                                                 {"layer_types", "full_attention"},
                                                 {"rope_parameters", 3},
                                                 {"linear_num_key_heads", "two"},
                                                 {"linear_conv_kernel_dim", 0},
                                                 {"tie_word_embeddings", 1}};
  for (const auto& [key, value] : broken)
    EXPECT_THAT(refused(changed({{key, value}}), ErrorCode::kCorrupt), HasSubstr(key));
}

TEST(Qwen35Config, RefusesSizesThatCannotBeBuilt) {
  const std::pair<json, const char*> others[] = {
      {{{"linear_num_value_heads", 3}}, "delta_value_heads"},
      {{{"linear_key_head_dim", 5000}}, "delta_key_dim"},
      {{{"linear_conv_kernel_dim", 500}}, "delta_taps"},
      {{{"num_key_value_heads", 3}}, "kv_heads"},
      {{{"head_dim", 512}}, "head_dim"},
      {{{"head_dim", 6}}, "rope_share"},  // 1 of 6 numbers
      {{{"layer_types", {"linear_attention", "linear_attention", "linear_attention"}}},
       "attention_interval"}};
  for (const auto& [more, named] : others)
    EXPECT_THAT(refused(changed(more)), HasSubstr(named)) << more;
}

TEST(Qwen35MoeConfig, ReadsAndWritesWhatTransformersSaves) {
  const HuggingFaceModel model = read_valid(saved_moe());
  const DecoderSpec spec = spec_of(model.shape);
  const ExpertsSpec& experts = spec.block_at(0).experts;
  EXPECT_EQ(experts.count, 6);
  EXPECT_EQ(experts.per_token, 3);
  EXPECT_EQ(experts.width, 20);
  EXPECT_TRUE(experts.renormalises);
  EXPECT_FALSE(experts.fp32_weights);
  EXPECT_TRUE(experts.shared);
  EXPECT_EQ(spec.block.mlp.width, 28);
  EXPECT_TRUE(spec.block_at(1).experts.exist());
  const json written = json::parse(family_of(model.shape).write_config(model));
  for (const auto& [key, value] : saved_moe().items())
    if (key != "initializer_range" && key != "transformers_version" && key != "use_cache" &&
        key != "router_aux_loss_coef") {
      EXPECT_EQ(written.value(key, json()), value) << key;
    }
  EXPECT_FALSE(written.contains("intermediate_size"));
  EXPECT_EQ(read_valid(written).shape.numbers, model.shape.numbers);
  EXPECT_FALSE(json::parse(family_of(read_valid(saved()).shape).write_config(read_valid(saved())))
                   .contains("num_experts"));
}

TEST(Qwen35MoeConfig, HasTheDefaultsOfTransformersClass) {
  const HuggingFaceModel model = read_valid({{"model_type", "qwen3_5_moe_text"}});
  EXPECT_EQ(model.shape.layers, 40);
  EXPECT_EQ(model.shape.hidden, 2048);
  const DecoderSpec spec = spec_of(model.shape);
  EXPECT_EQ(spec.block.attention.kv_heads, 2);
  EXPECT_EQ(spec.block.experts.count, 256);
  EXPECT_EQ(spec.block.experts.per_token, 8);
  EXPECT_EQ(spec.block.experts.width, 512);
  EXPECT_EQ(spec.block.mlp.width, 512);
  EXPECT_EQ(
      read_valid({{"model_type", "qwen3_5_moe"}, {"text_config", json::object()}}).shape.numbers,
      model.shape.numbers);
}

TEST(Qwen35MoeConfig, OfAModelThatSeesImagesReadsTheText) {
  const HuggingFaceModel model = read_valid(with_images(saved_moe()));
  EXPECT_EQ(model.shape.numbers, read_valid(saved_moe()).shape.numbers);
  ASSERT_EQ(model.notes.size(), 1U);
  EXPECT_THAT(model.notes[0], HasSubstr("vision encoder"));
}

TEST(Qwen35MoeConfig, RefusesOtherModelsByKey) {
  const std::pair<const char*, json> others[] = {{"norm_topk_prob", false},
                                                 {"decoder_sparse_step", 2},
                                                 {"mlp_only_layers", {0}},
                                                 {"architectures", {"Qwen3_5ForCausalLM"}},
                                                 {"hidden_act", "gelu"}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refused(changed({{key, value}}, saved_moe())), HasSubstr(key));
  EXPECT_EQ(refused(changed({{"mlp_only_layers", json::array()}}, saved_moe())), "accepted");
  const std::pair<const char*, json> broken[] = {{"num_experts", 0},
                                                 {"num_experts", "all"},
                                                 {"moe_intermediate_size", -1},
                                                 {"shared_expert_intermediate_size", 0},
                                                 {"num_experts_per_tok", 0}};
  for (const auto& [key, value] : broken)
    EXPECT_THAT(refused(changed({{key, value}}, saved_moe()), ErrorCode::kCorrupt), HasSubstr(key));
  EXPECT_THAT(refused(changed({{"num_experts_per_tok", 7}}, saved_moe())),
              HasSubstr("experts_per_token is 7"));
  EXPECT_THAT(refused(changed({{"num_experts", 1 << 13}}, saved_moe())),
              HasSubstr("from 1 to 4096"));
}

TEST(Qwen35MoeShape, ADenseModelHasNoNumbersOfExperts) {
  for (const char* const number : {"experts_per_token", "expert_width"}) {
    ModelShape dense = *preset_shape("qwen3.5-0.8b");
    dense.numbers[number] = 1;
    EXPECT_THAT(validate(dense).error().message(), HasSubstr(number));
    dense.numbers.erase(number);  // checkpoints of dense models have none of them
    EXPECT_TRUE(validate(dense).ok());
  }
  ModelShape shape = *preset_shape("qwen3.5-35b-a3b");
  shape.numbers["expert_width"] = 0;
  EXPECT_EQ(spec_of(complete(shape)).block.experts.width, 512);
}

TEST(Qwen35MoeShape, AdaptersAreThoseOfTheSharedExpertAndOfTheOthersToo) {
  const ModelShape shape = *preset_shape("qwen3.5-35b-a3b");
  const auto targets = family_of(shape).adapter_targets(shape);
  ASSERT_EQ(targets.size(), 14U);
  EXPECT_EQ(targets[12], "shared_expert_gate");
  EXPECT_EQ(targets[13], "experts");
  EXPECT_EQ(family_of(shape).adapter_targets(*preset_shape("qwen3.5-9b")).size(), 12U);
}

TEST(Qwen35Presets, HaveTheSizesOfTheirNames) {
  const std::pair<const char*, double> sizes[] = {
      {"qwen3.5-0.8b", 0.75e9},     {"qwen3.5-2b", 1.88e9},      {"qwen3.5-4b", 4.2e9},
      {"qwen3.5-9b", 8.95e9},       {"qwen3.5-27b", 26.9e9},     {"qwen3.5-35b-a3b", 34.7e9},
      {"qwen3.5-122b-a10b", 122e9}, {"qwen3.5-397b-a17b", 397e9}};
  for (const auto& [name, elements] : sizes) {
    const auto shape = preset_shape(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_TRUE(validate(*shape).ok());
    const double made = static_cast<double>(model_layout({.shape = *shape}).parameter_elements());
    EXPECT_NEAR(made / elements, 1, 0.01) << name << ": " << made;
  }
}

TEST(Qwen35Presets, CountTheParametersOfAToken) {
  const ModelLayout model = model_layout({.shape = *preset_shape("qwen3.5-35b-a3b")});
  EXPECT_EQ(model.parameter_elements() - model.active_elements(),
            std::uint64_t{40} * 248 * 3 * 2048 * 512);
}

TEST(Qwen35Names, LeaveOutWhatIsNotTheText) {
  const ModelShape shape = read_valid(saved()).shape;
  const ParameterNames& names = family_of(shape).parameter_names(shape);
  EXPECT_EQ(names.ours("model.language_model.layers.0.mlp.up_proj.weight"),
            "layers.0.mlp.up_proj.weight");
  EXPECT_EQ(names.ours("model.layers.0.mlp.up_proj.weight"), "layers.0.mlp.up_proj.weight");
  EXPECT_EQ(names.ours("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(names.exported("layers.0.linear_attn.A_log"), "model.layers.0.linear_attn.A_log");
  EXPECT_TRUE(names.is_buffer(names.ours("model.visual.blocks.0.attn.qkv.weight")));
  EXPECT_TRUE(names.is_buffer("mtp.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(names.is_buffer(names.ours("model.language_model.layers.9.mlp.up_proj.weight")));
}

}  // namespace
}  // namespace sluice::engine
