
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const ModelShape kTiny = {
    .layers = 2, .hidden = 12, .heads = 3, .context_tokens = 5, .vocab = 7, .dropout = 0.1};

std::uint64_t parameter_elements(const ModelShape& shape) {
  return model_layout({.shape = shape}).parameter_elements();
}

TEST(ModelShape, PresetsHaveThePublishedNumbersOfParameters) {
  // sum(p.numel()) of Hugging Face's gpt2, gpt2-medium, gpt2-large and gpt2-xl.
  EXPECT_EQ(parameter_elements(*preset_shape("gpt2-small")), 124439808U);
  EXPECT_EQ(parameter_elements(*preset_shape("gpt2-medium")), 354823168U);
  EXPECT_EQ(parameter_elements(*preset_shape("gpt2-large")), 774030080U);
  EXPECT_EQ(parameter_elements(*preset_shape("gpt2-xl")), 1557611200U);
  EXPECT_EQ(parameter_elements(*preset_shape("gpt-lite")), 124439808U + 1024U * 768U);
}

TEST(ModelShape, EveryPresetIsValidAndOtherNamesAreNone) {
  EXPECT_EQ(find_family("gpt2")->presets().size(), 5U);
  for (const NamedShape& it : model_presets()) {
    ASSERT_TRUE(preset_shape(it.name).has_value()) << it.name;
    EXPECT_TRUE(validate(*preset_shape(it.name)).ok()) << it.name;
  }
  EXPECT_FALSE(preset_shape("gpt3").has_value());
  EXPECT_EQ(preset_shape("gpt-lite")->context_tokens, 2048);
}

std::string refusal(ModelShape shape) {
  const Status status = validate(shape);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  return status.error().message();
}

TEST(ModelShape, IsRefusedWithTheNumberAtFault) {
  EXPECT_EQ(refusal(kTiny), "");
  ModelShape shape = kTiny;
  shape.heads = 5;
  EXPECT_THAT(refusal(shape), ContainsRegex("hidden 12.*5 heads"));
  shape = kTiny;
  shape.layers = 0;
  EXPECT_THAT(refusal(shape), HasSubstr("layers is 0"));
  shape = kTiny;
  shape.vocab = -7;
  EXPECT_THAT(refusal(shape), HasSubstr("vocab is -7"));
  shape = kTiny;
  shape.context_tokens = std::int64_t{1} << 40;
  EXPECT_THAT(refusal(shape), HasSubstr("context is 1099511627776"));
  shape = kTiny;
  shape.ffn_hidden = -1;
  EXPECT_THAT(refusal(shape), HasSubstr("ffn_hidden is -1"));
  for (const double dropout : {-0.1, 1.0, std::nan("")}) {
    shape = kTiny;
    shape.dropout = dropout;
    EXPECT_THAT(refusal(shape), HasSubstr("dropout is")) << dropout;
  }
}

TEST(ModelShape, AGpt2MayLackItsNumbersAndHasOpenAisThen) {
  const DecoderSpec usual = spec_of(kTiny);
  EXPECT_EQ(usual.block.mlp.activation, Activation::kGeluTanh);
  EXPECT_EQ(usual.block.epsilon, 1e-5);
  EXPECT_TRUE(usual.tied);
  EXPECT_EQ(complete(kTiny).numbers,
            (std::map<std::string, double>{{"activation", 0},
                                           {"norm_epsilon", 1e-5},
                                           {"tied_head", 1},
                                           {"scale_attention", 1},
                                           {"scale_attention_by_layer", 0}}));
  EXPECT_EQ(refusal(complete(kTiny)), "");
  ModelShape shape = kTiny;
  shape.numbers = {{"activation", 2}, {"norm_epsilon", 1e-12}, {"tied_head", 0}};
  EXPECT_EQ(refusal(shape), "");
  EXPECT_EQ(spec_of(shape).block.mlp.activation, Activation::kRelu);
  EXPECT_EQ(spec_of(shape).block.epsilon, 1e-12);
  EXPECT_FALSE(spec_of(shape).tied);
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, double>>{{"activation", 4},
                                                   {"activation", 0.5},
                                                   {"norm_epsilon", 0},
                                                   {"norm_epsilon", std::nan("")},
                                                   {"tied_head", 2},
                                                   {"scale_attention", -1},
                                                   {"kv_heads", 1}}) {
    shape.numbers = {{name, value}};
    EXPECT_THAT(refusal(shape), HasSubstr(name + " is ")) << value;
  }
}

TEST(ModelShape, AGpt2sScoresAreScaledByItsBlock) {
  const auto scale = [](const std::map<std::string, double>& numbers) {
    ModelShape shape = kTiny;
    shape.numbers = numbers;
    AttentionSpec attention = spec_of(shape).block.attention;
    attention.head_dim = 16;
    return attention.scale(/*layer=*/3);
  };
  EXPECT_EQ(scale({}), std::nullopt);
  EXPECT_EQ(scale({{"scale_attention_by_layer", 1}}), 1.0 / 16);
  EXPECT_EQ(scale({{"scale_attention", 0}}), 1.0);
  EXPECT_EQ(scale({{"scale_attention", 0}, {"scale_attention_by_layer", 1}}), 0.25);
}

TEST(ModelShape, AHeadOfItsOwnIsTheFirstOfItsUnitAndIsNotPadded) {
  ModelShape shape = kTiny;
  shape.numbers = {{"tied_head", 0}};
  const ModelLayout tied = model_layout({.shape = kTiny, .padded_vocab = 64});
  const ModelLayout own = model_layout({.shape = shape, .padded_vocab = 64});
  EXPECT_EQ(own.parameter_elements(), tied.parameter_elements() + 7 * 12);
  EXPECT_TRUE(own.borrowed(own.head()).empty());
  EXPECT_FALSE(own.has_borrowers(0));
  const ParameterSpec& head = own.layout(own.head()).parameters.front();
  EXPECT_EQ(head.name, "lm_head.weight");
  EXPECT_EQ(head.group, kDecayed);
  EXPECT_FALSE(head.gradient_is_product);  // chunks of the loss add to it
  EXPECT_EQ(head.slot_shape(), (std::vector<std::int64_t>{7, 12}));
  EXPECT_EQ(own.layout(0).slot_elements, own.layout(0).elements);
  const PassShape pass = {.micro_batch = 2, .tokens = 5, .number_bytes = 2};
  EXPECT_LT(own.kind(own.head()).flops(5).forward, tied.kind(tied.head()).flops(5).forward);
  EXPECT_LT(own.kind(own.head()).peak_bytes(pass, {}), tied.kind(tied.head()).peak_bytes(pass, {}));
  EXPECT_EQ(own.kind(1).flops(5).forward, tied.kind(1).flops(5).forward);
  const ParameterNames& names = find_family("gpt2")->parameter_names(shape);
  EXPECT_FALSE(names.is_tied);
  EXPECT_EQ(names.exported("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(names.exported("wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(find_family("gpt2")->parameter_names(kTiny).exported("wte.weight"), "wte.weight");
}

TEST(UnitLayout, ParametersFollowEachOtherAlignedAndGroupByGroup) {
  const ModelLayout model = model_layout({.shape = kTiny});
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    std::uint64_t end = 0;
    int group = kDecayed;
    for (const ParameterSpec& parameter : layout.parameters) {
      EXPECT_EQ(parameter.first_element % kParameterAlignment, 0U) << parameter.name;
      EXPECT_GE(parameter.first_element, end);
      EXPECT_LT(parameter.first_element, end + kParameterAlignment);
      EXPECT_GE(parameter.group, group);
      EXPECT_EQ(parameter.group == kDecayed, parameter.shape.size() == 2) << parameter.name;
      end = parameter.first_element + parameter.elements;
      group = parameter.group;
    }
    EXPECT_EQ(layout.elements, (end + 127) / 128 * 128);
    EXPECT_EQ(layout.slot_elements, layout.elements);
    EXPECT_EQ(layout.elements_of_group(kDecayed) + layout.elements_of_group(kUndecayed),
              layout.elements);
  }
}

TEST(UnitLayout, PaddedRowsLieBehindTheFlatOrder) {
  const UnitLayout plain = embedding_layout(spec_of(kTiny));
  const UnitLayout padded = embedding_layout(spec_of(kTiny), 64);
  const ParameterSpec& wte = padded.parameters[token_parameter(spec_of(kTiny))];
  EXPECT_EQ(wte.name, "wte.weight");
  EXPECT_EQ(padded.elements, plain.elements);
  EXPECT_EQ(wte.shape, (std::vector<std::int64_t>{7, 12}));
  EXPECT_EQ(wte.slot_shape(), (std::vector<std::int64_t>{64, 12}));
  EXPECT_EQ(padded.slot_elements, wte.first_element + 64 * 12);
}

}  // namespace
}  // namespace sluice::engine
