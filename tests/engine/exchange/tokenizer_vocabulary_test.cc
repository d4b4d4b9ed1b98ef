#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/data/sha256.h"
#include "engine/exchange/tokenizer_files.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

std::string sha256(const std::string& text) {
  data::Sha256 hash;
  hash.update(text);
  return hash.finish();
}

std::string refusal(const std::string& json) {
  const auto parsed = parse_tokenizer_vocabulary(json);
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
  return parsed.error().message();
}

TEST(TokenizerVocabulary, IsTheSameHoweverTheFileIsWritten) {
  const auto one = parse_tokenizer_vocabulary(
      R"({"added_tokens": [{"id": 2, "content": "<end>", "special": true}],
          "model": {"type": "BPE", "vocab": {"b": 1, "a": 0, "<end>": 2}, "merges": ["a b"]}})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->size, 3U);
  EXPECT_EQ(one->added_token("<end>"), 2);
  EXPECT_EQ(one->added_token("a"), std::nullopt);
  EXPECT_EQ(one->added_text(2), "<end>");
  EXPECT_EQ(one->sha256, sha256("0 1 a\n1 1 b\n2 5 <end>\n"));
  const auto again = parse_tokenizer_vocabulary(
      R"({"version": "1.0", "model": {"merges": [["a", "b"]], "vocab": {"a": 0, "b": 1}},
          "added_tokens": [{"content": "<end>", "id": 2}]})");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->sha256, one->sha256);
  const auto unigram =
      parse_tokenizer_vocabulary(R"({"model": {"vocab": [["a", -1], ["b", -2.5], ["<end>", 0]]}})");
  ASSERT_TRUE(unigram.ok());
  EXPECT_EQ(unigram->sha256, one->sha256);
  const auto other = parse_tokenizer_vocabulary(R"({"model": {"vocab": {"a": 1, "b": 0}}})");
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->sha256, one->sha256);
}

std::string difference(const std::string& a, const std::string& b) {
  const auto one = parse_tokenizer_vocabulary(a);
  const auto other = parse_tokenizer_vocabulary(b);
  if (!one.ok() || !other.ok()) return "refused";
  const auto found = first_difference(*one, *other);
  if (!found) return "none";
  return std::to_string(found->token) + " " + found->a + " " + found->b;
}

TEST(TokenizerVocabulary, IsTheSameTokenizersWithMoreAddedTokens) {
  const std::string two = R"({"model": {"vocab": {"a": 0, "b": 1}}})";
  const std::string padded =
      R"({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<pad>"}]})";
  const std::string ended =
      R"({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<end>"}]})";
  const std::string three = R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}}})";
  const std::string turned = R"({"model": {"vocab": {"a": 1, "b": 0}}})";
  EXPECT_EQ(difference(two, padded), "none");
  EXPECT_EQ(difference(padded, two), "none");
  EXPECT_EQ(difference(padded, ended), "2 <pad> <end>");
  EXPECT_EQ(difference(padded, three), "2 <pad> ab");
  EXPECT_EQ(difference(two, turned), "0 a b");
  // Its texts are split differently, though no number has two meanings.
  EXPECT_EQ(difference(two, three), "2  ab");
  EXPECT_EQ(difference(three, two), "2 ab ");
}

TEST(TokenizerVocabulary, RefusesWhatIsNone) {
  EXPECT_THAT(refusal("oops"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no \"model\""));
  EXPECT_THAT(refusal(R"({"model": {}})"), HasSubstr("no \"vocab\""));
  EXPECT_THAT(refusal(R"({"model": {"vocab": {}}})"), HasSubstr("no tokens"));
  EXPECT_THAT(refusal(R"({"model": {"vocab": {"a": -1}}})"), HasSubstr("-1"));
  EXPECT_THAT(refusal(R"({"model": {"vocab": [3]}})"), HasSubstr("not a token"));
  EXPECT_THAT(refusal(R"({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]})"),
              HasSubstr("added_tokens"));
}

}  // namespace
}  // namespace sluice::engine
