#include "engine/model/gpt2/gpt2_config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string config_with(const char* more) {
  return std::string(R"({"model_type": "gpt2", "vocab_size": 300, )") + more + "}";
}

TEST(Gpt2Config, HasItsSpecialTokensAndTransformersDefaults) {
  const auto said =
      parse_gpt2_config(config_with(R"("bos_token_id": 4, "eos_token_id": [2, 999])"));
  ASSERT_TRUE(said.ok());
  EXPECT_EQ(said->special, (SpecialTokens{.begin = 4, .ends = {2}}));
  EXPECT_TRUE(parse_gpt2_config(config_with(R"("n_head": 4)"))->special.empty());  // 50256 is none
  const auto whole = parse_gpt2_config(R"({"model_type": "gpt2"})");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->special, (SpecialTokens{.begin = 50256, .ends = {50256}}));
  const json back = json::parse(gpt2_config_text(*said));
  EXPECT_EQ(back.at("bos_token_id"), 4);
  EXPECT_EQ(back.at("eos_token_id"), 2);
  EXPECT_EQ(back.at("pad_token_id"), nullptr);
}

// transformers takes these for its attribute_map.
TEST(Gpt2Config, KnowsSizesByTheirCommonNames) {
  const auto config = parse_gpt2_config(
      config_with(R"("num_attention_heads": 2, "hidden_size": 64, "num_hidden_layers": 3,
                     "max_position_embeddings": 32)"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->shape.heads, 2);
  EXPECT_EQ(config->shape.hidden, 64);
  EXPECT_EQ(config->shape.layers, 3);
  EXPECT_EQ(config->shape.context_tokens, 32);
  const auto both = parse_gpt2_config(config_with(R"("n_head": 4, "num_attention_heads": 2)"));
  ASSERT_FALSE(both.ok());
  EXPECT_THAT(both.error().message(), HasSubstr("\"num_attention_heads\" 2"));
}

}  // namespace
}  // namespace sluice::engine
