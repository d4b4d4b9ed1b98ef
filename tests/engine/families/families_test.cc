// The table of families, in a program that adds two families.
#include "engine/families/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/key_table.h"
#include "tests/engine/families/data_families.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Numbers = std::map<std::string, double>;

// Before main(), and so before any use of keys.
const bool kAdded = [] {
  add_data_families();
  return true;
}();

class Late final : public ModelFamily {
 public:
  std::string_view name() const override { return "late"; }
  Status check(const ModelShape& /*shape*/) const override { return {}; }
  ModelLayout layout(const ModelOptions& options) const override {
    return ante_family().layout(options);
  }
  const ParameterNames& parameter_names(const ModelShape& shape) const override {
    return ante_family().parameter_names(shape);
  }
  std::span<const std::string_view> model_types() const override { return {}; }
  const std::map<std::string, std::string>& config_keys() const override {
    return ante_family().config_keys();
  }
  Result<HuggingFaceModel> read_config(std::string_view /*text*/) const override {
    return HuggingFaceModel{};
  }
  std::string write_config(const HuggingFaceModel& /*model*/) const override { return "{}"; }
};

std::string refusal(const ModelShape& shape) {
  const Status valid = validate(shape);
  if (valid.ok()) return "accepted";
  EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
  return valid.error().message();
}

TEST(Families, CannotComeAfterWhatIsMadeOfTheTable) {
  ASSERT_TRUE(kAdded);
  static const Late late;
  EXPECT_DEATH(
      {
        config::all_keys();
        add_family(late);
      },
      "the family late was added too late");
  EXPECT_DEATH(
      {
        model_presets();
        add_family(late);
      },
      "the family late was added too late");
  EXPECT_DEATH(add_family(ante_family()), "there are two families ante");
}

TEST(Families, CompleteAShapeWithTheirNumbers) {
  const ModelShape preset = *preset_shape("ante-small");
  EXPECT_EQ(preset.numbers, (Numbers{{"data_heads", 4}, {"data_theta", 10000}}));
  ModelShape shape = preset;
  shape.numbers = {{"data_heads", 2}};
  EXPECT_EQ(complete(shape).numbers, (Numbers{{"data_heads", 2}, {"data_theta", 10000}}));
  shape.family = "nowhere";
  EXPECT_EQ(complete(shape).numbers, shape.numbers);
  for (const NamedShape& it : model_presets()) EXPECT_EQ(refusal(it.shape), "accepted") << it.name;
}

TEST(Families, HaveAllOfTheirNumbersAndNoOther) {
  ModelShape shape = *preset_shape("ante-small");
  shape.numbers.erase("data_theta");
  EXPECT_THAT(refusal(shape), HasSubstr("ante needs data_theta"));
  shape = *preset_shape("ante-small");
  shape.numbers["head_size"] = 8;
  EXPECT_THAT(refusal(shape), ContainsRegex("head_size.*family ante"));
  shape = *preset_shape("ante-small");
  shape.numbers["data_heads"] = 9;
  EXPECT_THAT(refusal(shape), HasSubstr("data_heads is 9"));
  EXPECT_THAT(refusal(shape), HasSubstr("at most 8"));
}

TEST(Families, FillInWhatAHuggingFaceConfigLeavesOut) {
  const auto read = read_hugging_face_config(
      R"({"model_type": "bellum", "depth": 2, "width": 10, "heads": 4, "positions": 8, "tokens": 9,
          "num_data_heads": 4})");
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->shape.numbers, (Numbers{{"data_heads", 4}, {"head_size", 128}}));
  EXPECT_EQ(refusal(read->shape), "accepted");
}

TEST(Families, KnowWhoseContextIsNoLimit) {
  EXPECT_FALSE(has_learned_positions(preset_shape("qwen3-0.6b").value()));
  EXPECT_TRUE(has_learned_positions(preset_shape("gpt2-small").value()));
}

// Frequencies that older files contain, per block or for the model.
TEST(Families, NeedNoFrequenciesOfALlama) {
  const ModelShape shape = preset_shape("qwen3-0.6b").value();
  const ParameterNames& names = family_of(shape).parameter_names(shape);
  EXPECT_TRUE(names.is_buffer("rotary_emb.inv_freq"));
  EXPECT_TRUE(names.is_buffer("layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(names.is_buffer("layers.0.self_attn.q_proj.weight"));
}

}  // namespace
}  // namespace sluice::engine
