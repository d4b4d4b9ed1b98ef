#include "engine/weights/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "engine/weights/tied_head.h"
#include "tests/engine/weights/weights_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

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

const ParameterNames kNames = {.prefix = "transformer.",
                               .head = "lm_head.weight",
                               .is_tied = true,
                               .token_embedding = "wte.weight"};

class TiedHead : public testing::Test {
 protected:
  // Writes two tensors; the head's last value is different if `differs`.
  Status check(DType dtype, bool differs, std::uint64_t rows = 300) {
    const std::string path = folder_.file("model.safetensors");
    const std::vector<TensorSpec> tensors = {{"transformer.wte.weight", dtype, {rows, 4096}},
                                             {"lm_head.weight", dtype, {rows, 4096}}};
    SafetensorsWriter::Options options;
    options.path = path;
    auto writer = SafetensorsWriter::create(*queue_, options, tensors);
    SLUICE_RETURN_IF_ERROR(writer.ok() ? Status() : Status(writer.error()));
    std::vector<float> values = values_of(1, rows * 4096);
    values[7] = std::numeric_limits<float>::quiet_NaN();
    SLUICE_RETURN_IF_ERROR((*writer)->append(tensors[0].name, values));
    if (differs) values.back() += 1;
    SLUICE_RETURN_IF_ERROR((*writer)->append(tensors[1].name, values));
    SLUICE_RETURN_IF_ERROR((*writer)->finish());
    SLUICE_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::open(*queue_, path));
    EXPECT_TRUE(check_tied_head(kNames, *reader, rows * 4096 - 1).ok());  // all but the last value
    return check_tied_head(kNames, *reader);
  }

  const aio::TemporaryFolder folder_;
  const std::unique_ptr<aio::IoBackend> backend_ =
      aio::make_backend_or_die(aio::BackendKind::kPosix);
  const std::unique_ptr<aio::IoQueue> queue_ = aio::make_queue_or_die(*backend_, {});
};

TEST_F(TiedHead, IsTheEmbeddingToItsLastBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_TRUE(check(dtype, false).ok());
    const Status refused = check(dtype, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("\"lm_head.weight\""));
    EXPECT_THAT(refused.error().message(), HasSubstr("token 299 "));
  }
}

}  // namespace
}  // namespace sluice::engine
