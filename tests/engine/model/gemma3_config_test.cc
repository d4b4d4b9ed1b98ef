// Gemma 3's config.json, sizes, names in files and refusals.

#include <gmock/gmock.h>

#include <cmath>
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
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": null, "bos_token_id": 2, "dtype": "float32", "eos_token_id": 1,
    "final_logit_softcapping": null, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 72,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 64, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
    "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    "sliding_window": 8, "tie_word_embeddings": true, "transformers_version": "5.24.0",
    "use_bidirectional_attention": false, "use_cache": true, "vocab_size": 101})");
  return text;
}

json changed(const json& more) { return with(saved(), more); }

json with_images(const json& text, const json& more = json::object()) {
  json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                 {"image_token_index", 7},
                 {"model_type", "gemma3"},
                 {"text_config", text},
                 {"vision_config", {{"model_type", "siglip_vision_model"}}}};
  config["text_config"].erase("architectures");
  config.update(more);
  return config;
}

TEST(Gemma3Config, ReadsWhatTransformersSaves) {
  const HuggingFaceModel model = read_valid(saved());
  EXPECT_THAT(model.notes, IsEmpty());
  EXPECT_THAT(model.special.ends, ElementsAre(1));
  const DecoderSpec spec = spec_of(model.shape);
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.embedding_scale, std::sqrt(48.0));
  EXPECT_EQ(spec.block.attention.scale(0), 1 / std::sqrt(24.0));
  const AttentionSpec windowed = spec.block_at(0).attention;
  const AttentionSpec full = spec.block_at(1).attention;
  EXPECT_EQ(windowed.window, 8);
  EXPECT_EQ(windowed.rope.theta, 10000);
  EXPECT_EQ(windowed.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(full.rope.theta, 1000000);
  EXPECT_EQ(full.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(full.rope.factor, 8);
  EXPECT_EQ(spec.block_at(2).attention.window, 8);
}

TEST(Gemma3Config, WritesWhatItReads) {
  const json plain = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 200.0}}}};
  const std::vector<std::string> sliding(3, "sliding_attention");
  const std::vector<std::string> full(3, "full_attention");
  for (const json& config :
       {saved(), changed({{"tie_word_embeddings", false}, {"attention_bias", true}}),
        changed({{"rope_parameters", plain}, {"layer_types", sliding}}),
        changed({{"num_key_value_heads", 1}, {"layer_types", full}})})
    expect_writes_what_it_reads(config);
}

TEST(Gemma3Config, HasTheDefaultsOfTransformersClass) {
  const HuggingFaceModel model = read_valid({{"model_type", "gemma3_text"}});
  EXPECT_EQ(model.shape.layers, 26);
  EXPECT_EQ(model.shape.hidden, 2304);
  EXPECT_EQ(model.shape.vocab, 262208);
  const DecoderSpec spec = spec_of(model.shape);
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.block.attention.kv_heads, 4);
  EXPECT_EQ(spec.block.attention.scale(0), 1.0 / 16);
  EXPECT_EQ(spec.block_at(4).attention.window, 4096);
  EXPECT_EQ(spec.block_at(5).attention.window, 0);
  EXPECT_EQ(spec.block_at(6).attention.rope.theta, 10000);
  EXPECT_EQ(spec.block_at(11).attention.rope.theta, 1000000);
}

// The keys of transformers 4, as on the hub.
TEST(Gemma3Config, ReadsTheKeysOfEarlierVersions) {
  json old = saved();
  old.erase("rope_parameters");
  old.erase("layer_types");
  old.update({{"sliding_window_pattern", 2},
              {"rope_theta", 1000000.0},
              {"rope_local_base_freq", 10000.0},
              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  EXPECT_EQ(read_valid(old).shape.numbers, read_valid(saved()).shape.numbers);
}

TEST(Gemma3Config, OfAModelThatSeesImagesReadsTheText) {
  json text = saved();
  const HuggingFaceModel model = read_valid(with_images(text));
  EXPECT_EQ(model.shape.numbers, read_valid(saved()).shape.numbers);
  ASSERT_EQ(model.notes.size(), 1U);
  EXPECT_THAT(model.notes[0], HasSubstr("vision encoder"));
  EXPECT_THAT(refused(with_images(text, {{"tie_word_embeddings", false}}), ErrorCode::kCorrupt),
              HasSubstr("tie_word_embeddings"));
  text.erase("eos_token_id");
  EXPECT_THAT(read_valid(with_images(text, {{"eos_token_id", {1, 98}}})).special.ends,
              ElementsAre(1, 98));
  // What the outer object does not say is its class' default, and its quantization counts.
  EXPECT_TRUE(
      spec_of(
          read_valid(with_images(changed({{"tie_word_embeddings", false}}), json::object())).shape)
          .tied);
  EXPECT_THAT(refused(with_images(changed({{"quantization_config", nullptr}}),
                                  {{"quantization_config", {{"quant_method", "fp8"}}}})),
              HasSubstr("fp8"));
  EXPECT_THAT(refused({{"model_type", "gemma3"}}, ErrorCode::kCorrupt), HasSubstr("text_config"));
  EXPECT_THAT(refused({{"model_type", "gemma3"}, {"text_config", 1}}, ErrorCode::kCorrupt),
              HasSubstr("text_config"));
}

TEST(Gemma3Config, RefusesOtherModelsByKey) {
  const std::pair<const char*, json> others[] = {
      {"hidden_activation", "silu"},
      {"final_logit_softcapping", 30.0},
      {"attn_logit_softcapping", 50.0},
      {"use_bidirectional_attention", true},
      {"is_causal", false},
      {"partial_rotary_factor", 0.5},
      {"sliding_window", nullptr},
      {"architectures", {"Gemma3ForSequenceClassification"}},
      {"quantization_config", {{"bits", 4}}},
      {"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}},
      {"layer_types", {"sliding_attention", "chunked_attention", "sliding_attention"}},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5.0}}}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refused(changed({{key, value}})), HasSubstr(key)) << value;
  const json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}};
  const json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  for (const json& ropes : {json{{"full_attention", yarn}}, json{{"sliding_attention", linear}}})
    EXPECT_THAT(refused(changed({{"rope_parameters", ropes}})), HasSubstr("rope_type"));
  EXPECT_THAT(refused(changed({{"rope_parameters", nullptr},
                               {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}})),
              HasSubstr("\"type\" is \"linear\""));
  const std::pair<const char*, json> broken[] = {
      {"layer_types", {"full_attention"}},
      {"layer_types", "full_attention"},
      {"rope_parameters", 3},
      {"rope_scaling", 3},
      {"factor", {{"full_attention", {{"rope_type", "linear"}}}}},
      {"full_attention", {{"full_attention", 3}}},
      {"num_key_value_heads", "two"},
      {"sliding_window", 0},
      {"query_pre_attn_scalar", 0},
      {"tie_word_embeddings", 1}};
  for (const auto& [key, value] : broken) {
    const std::string name(key);
    const bool is_rope = name == "factor" || name == "full_attention";
    EXPECT_THAT(refused(changed({{is_rope ? "rope_parameters" : key, value}}), ErrorCode::kCorrupt),
                HasSubstr(key));
  }
}

TEST(Gemma3Config, RefusesSizesThatCannotBeBuilt) {
  const std::pair<json, const char*> others[] = {{{{"num_key_value_heads", 3}}, "kv_heads"},
                                                 {{{"head_dim", 512}}, "head_dim"},
                                                 {{{"head_dim", 7}}, "head_dim"}};
  for (const auto& [more, named] : others)
    EXPECT_THAT(refused(changed(more)), HasSubstr(named)) << more;
}

TEST(Gemma3Presets, HaveTheParametersOfThePublishedModels) {
  // Published counts are with a vocabulary of 262,144.
  constexpr std::int64_t kVocab = 262144;
  const std::pair<const char*, std::uint64_t> sizes[] = {{"gemma3-270m", 268098176},
                                                         {"gemma3-1b", 999885952},
                                                         {"gemma3-4b", 3880099328},
                                                         {"gemma3-12b", 11765788416},
                                                         {"gemma3-27b", 27009002240}};
  for (const auto& [name, elements] : sizes) {
    auto shape = preset_shape(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_TRUE(validate(*shape).ok());
    shape->vocab = kVocab;
    EXPECT_EQ(model_layout({.shape = *shape}).parameter_elements(), elements) << name;
  }
}

TEST(Gemma3Names, LeaveOutWhatIsNotTheText) {
  const ModelShape shape = read_valid(saved()).shape;
  const ParameterNames& names = family_of(shape).parameter_names(shape);
  // Folders of transformers 5, of earlier versions, and of text models.
  for (const char* const prefix : {"model.language_model.", "language_model.model.", "model.", ""})
    EXPECT_EQ(names.ours(std::string(prefix) + "layers.0.mlp.up_proj.weight"),
              "layers.0.mlp.up_proj.weight");
  EXPECT_EQ(names.ours("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(names.exported("layers.0.self_attn.q_norm.weight"),
            "model.layers.0.self_attn.q_norm.weight");
  for (const char* const name :
       {"vision_tower.vision_model.head.weight", "model.vision_tower.vision_model.head.weight",
        "multi_modal_projector.mm_input_projection_weight"})
    EXPECT_TRUE(names.is_buffer(names.ours(name))) << name;
  EXPECT_FALSE(names.is_buffer(names.ours("language_model.model.layers.9.mlp.up_proj.weight")));
}

}  // namespace
}  // namespace sluice::engine
