
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "engine/families/families.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string config_with(const char* more) {
  return std::string(R"({"model_type": "gpt2", "vocab_size": 300, )") + more + "}";
}

TEST(Gpt2Config, HasItsSpecialTokensAndTransformersDefaults) {
  const auto said =
      read_hugging_face_config(config_with(R"("bos_token_id": 4, "eos_token_id": [2, 999])"));
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->special, (SpecialTokens{.begin = 4, .ends = {2}}));
  EXPECT_TRUE(
      read_hugging_face_config(config_with(R"("n_head": 4)"))->special.empty());  // no token 50256
  const auto whole = read_hugging_face_config(R"({"model_type": "gpt2"})");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->special, (SpecialTokens{.begin = 50256, .ends = {50256}}));
  const json back = json::parse(family_of(said->shape).write_config(*said));
  EXPECT_EQ(back.at("bos_token_id"), 4);
  EXPECT_EQ(back.at("eos_token_id"), 2);
  EXPECT_EQ(back.at("pad_token_id"), nullptr);
}

// transformers accepts these names through its attribute_map.
TEST(Gpt2Config, KnowsSizesByTheirCommonNames) {
  const auto config = read_hugging_face_config(
      config_with(R"("num_attention_heads": 2, "hidden_size": 64, "num_hidden_layers": 3,
                     "max_position_embeddings": 32)"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->shape.heads, 2);
  EXPECT_EQ(config->shape.hidden, 64);
  EXPECT_EQ(config->shape.layers, 3);
  EXPECT_EQ(config->shape.context_tokens, 32);
  const auto both =
      read_hugging_face_config(config_with(R"("n_head": 4, "num_attention_heads": 2)"));
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(both.error().message(), HasSubstr("\"num_attention_heads\" is 2"));
}

Activation activation_of(const std::string& more) {
  const auto model = read_hugging_face_config(config_with(more.c_str()));
  EXPECT_TRUE(model.ok()) << model.error().message();
  return model.ok() ? spec_of(model->shape).block.mlp.activation : Activation{};
}

TEST(Gpt2Config, HasItsActivationByEachOfItsNames) {
  for (const auto& [activation, names] : std::vector<std::pair<Activation, json>>{
           {Activation::kGeluTanh,
            {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"}},
           {Activation::kGelu, {"gelu", "gelu_python"}},
           {Activation::kRelu, {"relu"}},
           {Activation::kSilu, {"silu", "swish"}}}) {
    for (const json& name : names)
      EXPECT_EQ(activation_of(R"("activation_function": )" + name.dump()), activation) << name;
  }
}

// A file of a model without variants is written as before.
TEST(Gpt2Config, WritesWhatSetsAModelApart) {
  const auto written = [](const std::string& more) {
    const auto model = read_hugging_face_config(config_with(more.c_str()));
    return json::parse(family_of(model->shape).write_config(*model));
  };
  const json usual = written(R"("n_head": 4)");
  EXPECT_EQ(usual.at("activation_function"), "gelu_new");
  EXPECT_EQ(usual.at("layer_norm_epsilon"), 1e-5);
  EXPECT_EQ(usual.at("tie_word_embeddings"), true);
  EXPECT_EQ(usual.at("n_ctx"), usual.at("n_positions"));  // llama.cpp's converter reads n_ctx
  EXPECT_EQ(usual.at("torch_dtype"), usual.at("dtype"));
  EXPECT_EQ(usual.size(), 20U);
  const json other = written(
      R"("activation_function": "swish", "layer_norm_epsilon": 1e-06, "tie_word_embeddings": false,
         "scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true, "n_inner": 100,
         "reorder_and_upcast_attn": true)");
  EXPECT_EQ(other.at("activation_function"), "silu");
  EXPECT_EQ(other.at("layer_norm_epsilon"), 1e-6);
  EXPECT_EQ(other.at("tie_word_embeddings"), false);
  EXPECT_EQ(other.at("scale_attn_weights"), false);
  EXPECT_EQ(other.at("scale_attn_by_inverse_layer_idx"), true);
  EXPECT_EQ(other.at("n_inner"), 100);
  const auto back = read_hugging_face_config(other.dump());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(json::parse(family_of(back->shape).write_config(*back)), other);
}

TEST(Gpt2Config, RefusesByKeyAndValueWhatItDoesNotCompute) {
  for (const char* const wrong :
       {R"("activation_function": "quick_gelu")", R"("activation_function": "gelu_10")",
        R"("activation_function": null)", R"("activation_function": 3)",
        R"("layer_norm_epsilon": 0)", R"("layer_norm_epsilon": -1e-05)",
        R"("layer_norm_epsilon": "1e-5")", R"("layer_norm_epsilon": null)",
        R"("layer_norm_epsilon": 2.0)", R"("tie_word_embeddings": null)",
        R"("tie_word_embeddings": 0)", R"("scale_attn_weights": "yes")",
        R"("scale_attn_weights": null)", R"("scale_attn_by_inverse_layer_idx": 1)",
        R"("reorder_and_upcast_attn": "no")", R"("add_cross_attention": true)", R"("n_inner": 0)",
        R"("resid_pdrop": null)", R"("quantization_config": {"bits":4})"}) {
    const auto model = read_hugging_face_config(config_with(wrong));
    ASSERT_FALSE(model.ok()) << wrong;
    const std::string key_and_value = wrong;
    const std::size_t colon = key_and_value.find(": ");
    EXPECT_THAT(model.error().message(),
                HasSubstr(key_and_value.substr(0, colon) + " is " +
                          json::parse(key_and_value.substr(colon + 2)).dump()));
  }
  EXPECT_THAT(read_hugging_face_config(config_with(R"("activation_function": "quick_gelu")"))
                  .error()
                  .message(),
              HasSubstr(R"(but Sluice supports GPT-2s with "gelu_new", "gelu", "relu" or "silu")"));
}

// Another value at any place of a file gives a sentence, or a model that is written as it was read.
TEST(Gpt2Config, MutatedFilesAreReadOrRefusedWithASentence) {
  const std::vector<json> values = {
      nullptr, true,          false,          -1,       0,      1,       2,
      2.5,     1e-6,          1e300,          "gelu",   "relu", "swish", "gulp",
      "",      json::array(), json::object(), 1LL << 62};
  const json whole = json::parse(config_with(
      R"("n_head": 4, "n_embd": 32, "n_layer": 2, "n_positions": 16, "n_inner": 80,
         "activation_function": "gelu", "layer_norm_epsilon": 1e-6, "tie_word_embeddings": false,
         "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": true,
         "reorder_and_upcast_attn": false, "add_cross_attention": false, "resid_pdrop": 0.1,
         "embd_pdrop": 0.1, "attn_pdrop": 0.1, "bos_token_id": 1, "eos_token_id": [2, 3])"));
  std::mt19937 draw(8);
  int read_count = 0;
  for (int i = 0; i < 5000; ++i) {
    json config = whole;
    for (unsigned changes = 1 + draw() % 2; changes > 0; --changes) {
      auto entry = config.begin();
      std::advance(entry, static_cast<std::ptrdiff_t>(draw() % config.size()));
      *entry = values[draw() % values.size()];
    }
    config["model_type"] = "gpt2";
    const auto read = read_hugging_face_config(config.dump());
    if (!read.ok()) {
      EXPECT_GT(read.error().message().size(), 15U) << config;
      continue;
    }
    ++read_count;
    const Status valid = validate(read->shape);
    if (!valid.ok()) {
      EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(valid.error().message(), HasSubstr("cannot be built: ")) << config;
      continue;
    }
    const auto back = read_hugging_face_config(family_of(read->shape).write_config(*read));
    ASSERT_TRUE(back.ok()) << config << back.error().message();
    EXPECT_EQ(back->shape.numbers, read->shape.numbers) << config;
    EXPECT_EQ(back->shape.ffn(), read->shape.ffn()) << config;
    if (read->shape.layers < 100) {
      EXPECT_GT(model_layout({.shape = read->shape}).units(), 2);
    }
  }
  EXPECT_GT(read_count, 500);
  EXPECT_LT(read_count, 4500);
}

}  // namespace
}  // namespace sluice::engine
