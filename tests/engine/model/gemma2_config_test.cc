// Gemma 2's config.json, sizes and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>

#include "tests/engine/model/config_reading.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

// The file that transformers 5.23 saves for a small model.
const json& saved() {
  static const json text = json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "dtype": "float32", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 72,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 64, "model_type": "gemma2", "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
    "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": 8, "tie_word_embeddings": true, "transformers_version": "5.23.0",
    "use_bidirectional_attention": null, "use_cache": true, "vocab_size": 101})");
  return text;
}

json changed(const json& more) { return with(saved(), more); }

ModelShape read(const json& config) { return read_valid(config).shape; }

TEST(Gemma2Config, ReadsWhatTransformersSaves) {
  const DecoderSpec spec = spec_of(read(saved()));
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.logit_cap, 30);
  EXPECT_EQ(spec.embedding_scale, std::sqrt(48.0));
  EXPECT_EQ(spec.block.attention.soft_cap, 50);
  EXPECT_EQ(spec.block.attention.scale(0), 1 / std::sqrt(24.0));
  EXPECT_FALSE(spec.block.attention.head_norms);
  EXPECT_TRUE(spec.block.norms_branches());
  EXPECT_EQ(spec.block_at(0).attention.window, 8);
  EXPECT_EQ(spec.block_at(1).attention.window, 0);
  EXPECT_EQ(spec.block_at(1).attention.rope.theta, 10000);
  EXPECT_EQ(spec.block_at(2).attention.window, 8);
}

TEST(Gemma2Config, WritesWhatItReads) {
  for (const json& config :
       {saved(), changed({{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", 0.5}}),
        changed({{"layer_types", json(3, "full_attention")}, {"tie_word_embeddings", false}})})
    expect_writes_what_it_reads(config);
}

TEST(Gemma2Config, HasTheDefaultsOfTransformersClass) {
  const auto model = read_hugging_face_config(R"({"model_type": "gemma2"})");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->special, (SpecialTokens{.begin = 2, .ends = {1}, .padding = 0}));
  EXPECT_EQ(model->shape.numbers, preset_shape("gemma2-2b")->numbers);
  EXPECT_EQ(model->shape.ffn(), preset_shape("gemma2-2b")->ffn());
  EXPECT_EQ(model->shape.vocab, 256000);
}

TEST(Gemma2Config, RefusesOtherModelsByKey) {
  const std::pair<const char*, json> others[] = {
      {"hidden_activation", "silu"},
      {"use_bidirectional_attention", true},
      {"sliding_window", nullptr},
      {"attn_logit_softcapping", 0},
      {"final_logit_softcapping", 0.0},
      {"query_pre_attn_scalar", nullptr},
      {"head_dim", nullptr},
      {"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refused(changed({{key, value}})), HasSubstr(key)) << value;
  EXPECT_THAT(refused(changed({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}}}})),
              HasSubstr("rope_type"));
  EXPECT_THAT(refused(changed({{"num_attention_heads", 5}, {"num_key_value_heads", 5}})),
              HasSubstr("multiple"));
  for (const char* const key : {"attn_logit_softcapping", "final_logit_softcapping"})
    for (const json& value : std::vector<json>{-1, "30", 1e12})
      EXPECT_THAT(refused(changed({{key, value}}), ErrorCode::kCorrupt), HasSubstr(key));
}

// The published counts.
TEST(Gemma2Presets, HaveTheParametersOfThePublishedModels) {
  const std::pair<const char*, std::uint64_t> sizes[] = {
      {"gemma2-2b", 2614341888}, {"gemma2-9b", 9241705984}, {"gemma2-27b", 27227128320}};
  for (const auto& [name, elements] : sizes) {
    const auto shape = preset_shape(name);
    ASSERT_TRUE(shape) << name;
    EXPECT_TRUE(validate(*shape).ok());
    EXPECT_EQ(model_layout({.shape = *shape}).parameter_elements(), elements) << name;
  }
}

}  // namespace
}  // namespace sluice::engine
