#include "engine/weights/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;

TEST(SpecialTokens, AreOneTokenAListOrNone) {
  const auto one = parse_special_tokens(R"({"bos_token_id": 1, "eos_token_id": 2})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(*one, (SpecialTokens{.begin = 1, .ends = {2}}));
  const auto several = parse_special_tokens(R"({"eos_token_id": [5, 2, -1], "pad_token_id": 0})");
  ASSERT_TRUE(several.ok());
  EXPECT_THAT(several->ends, ElementsAre(5, 2));
  EXPECT_TRUE(several->ends_text(2));
  EXPECT_FALSE(several->ends_text(0));
  EXPECT_TRUE(parse_special_tokens(R"({"eos_token_id": null, "pad_token_id": -1})")->empty());
  for (const char* wrong :
       {R"({"eos_token_id": "</s>"})", R"({"eos_token_id": [1.5]})", R"({"bos_token_id": [1, 2]})",
        R"({"eos_token_id": 18446744073709551615})", "[]", ""}) {
    const auto refused = parse_special_tokens(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(SpecialTokens, AreThoseOfAVocabularyAndFillOneAnother) {
  const SpecialTokens tokens{.begin = 9, .ends = {3, 9}, .padding = 8};
  EXPECT_EQ(tokens.within(9), (SpecialTokens{.ends = {3}, .padding = 8}));
  EXPECT_EQ((SpecialTokens{.ends = {3}}).or_else({.begin = 1, .ends = {2}}),
            (SpecialTokens{.begin = 1, .ends = {3}}));
}

TEST(SpecialTokens, KeepWhatElseAGenerationConfigSays) {
  const auto text = generation_config_text(
      {.begin = 1, .ends = {2, 3}},
      R"({"_from_model_config": true, "temperature": 0.5, "eos_token_id": 7, "pad_token_id": 4})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(json::parse(*text),
            json({{"temperature", 0.5}, {"bos_token_id", 1}, {"eos_token_id", {2, 3}}}));
  EXPECT_EQ(json::parse(*generation_config_text({.ends = {5}}, "")), json({{"eos_token_id", 5}}));
  EXPECT_FALSE(generation_config_text({}, "oops").ok());
}

}  // namespace
}  // namespace sluice::engine
