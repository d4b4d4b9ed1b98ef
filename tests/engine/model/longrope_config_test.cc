// Phi-3's longrope: its config.json and refusals, and the frequencies.
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/model/config_reading.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

// The file that transformers 5.23 saves for a small model.
const json& saved() {
  static const json text = json::parse(R"({
    "architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "dtype": "float32", "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
    "initializer_range": 0.02, "intermediate_size": 72, "max_position_embeddings": 64,
    "model_type": "phi3", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "original_max_position_embeddings": 16, "pad_token_id": null,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"long_factor": [1.5, 2, 3, 5, 8, 13],
      "original_max_position_embeddings": 16, "partial_rotary_factor": 1.0, "rope_theta": 100.0,
      "rope_type": "longrope", "short_factor": [1.0, 1.25, 1.5, 2.0, 3.0, 4.0]},
    "sliding_window": null, "tie_word_embeddings": false, "transformers_version": "5.23.0",
    "use_cache": true, "vocab_size": 101})");
  return text;
}

const std::vector<double> kShort = {1, 1.25, 1.5, 2, 3, 4};
const std::vector<double> kLong = {1.5, 2, 3, 5, 8, 13};

json scaled(const json& more) {
  return with(saved(), {{"rope_parameters", with(saved()["rope_parameters"], more)}});
}

// The file in transformers 4's form, as on the hub.
json older(const json& scaling, const json& more = json::object()) {
  json config = saved();
  config.erase("rope_parameters");
  return with(with(config, {{"rope_theta", 100.0}, {"rope_scaling", scaling}}), more);
}

Rope rope_in(const json& config) { return spec_of(read_valid(config).shape).block.attention.rope; }

TEST(LongRopeConfig, ReadsWhatTransformersSaves) {
  const Rope rope = rope_in(saved());
  EXPECT_EQ(rope.scaling, RopeScaling::kLongRope);
  EXPECT_EQ(rope.theta, 100);
  EXPECT_EQ(rope.original_context, 16);
  EXPECT_EQ(rope.factor, 4);  // 64 / 16
  EXPECT_EQ(rope.short_factors, kShort);
  EXPECT_EQ(rope.long_factors, kLong);
}

TEST(LongRopeConfig, WritesWhatItReads) {
  for (const json& config : {saved(),
                             with(scaled({{"partial_rotary_factor", 0.5},
                                          {"short_factor", {1.0, 1.5, 2.0}},
                                          {"long_factor", {2.0, 4.5, 1e3}}}),
                                  {{"tie_word_embeddings", true}}),
                             scaled({{"factor", 8.0}}), scaled({{"attention_factor", 1.5}})})
    expect_writes_what_it_reads(config);
}

// transformers 4 refuses a longrope with other keys than these.
TEST(LongRopeConfig, WritesThreeKeysForOlderReadersWhereTheySayAll) {
  const HuggingFaceModel model = read_valid(saved());
  json written = json::parse(family_of(model.shape).write_config(model));
  EXPECT_EQ(written["rope_scaling"],
            (json{{"type", "longrope"}, {"short_factor", kShort}, {"long_factor", kLong}}));
  EXPECT_EQ(written["original_max_position_embeddings"], 16);
  written.erase("rope_parameters");
  EXPECT_EQ(read_valid(written).shape.numbers, model.shape.numbers);
  EXPECT_EQ(read_valid(written).shape.lists, model.shape.lists);
  const HuggingFaceModel other = read_valid(scaled({{"factor", 8.0}}));
  written = json::parse(family_of(other.shape).write_config(other));
  EXPECT_EQ(written["rope_scaling"]["factor"], 8);
}

TEST(LongRopeConfig, ReadsTheNamesAndKeysOfEarlierVersions) {
  const json lists = {{"short_factor", kShort}, {"long_factor", kLong}};
  for (const char* const type : {"longrope", "su", "yarn"}) {
    const HuggingFaceModel model = read_valid(older(with(lists, {{"type", type}})));
    EXPECT_EQ(model.shape.numbers, read_valid(saved()).shape.numbers) << type;
    EXPECT_EQ(model.shape.lists, read_valid(saved()).shape.lists) << type;
  }
  // The key outside, or the class' default of it, takes precedence over the one inside.
  EXPECT_EQ(rope_in(scaled({{"original_max_position_embeddings", 8}})).original_context, 16);
  json without = scaled({{"original_max_position_embeddings", 8}});
  without.erase("original_max_position_embeddings");
  EXPECT_EQ(rope_in(without).original_context, 4096);
}

TEST(LongRopeConfig, RefusesListsAndNumbersThatAreNone) {
  for (const char* const key : {"short_factor", "long_factor"}) {
    const std::string number = "rope_" + std::string(key);
    for (const json& list : std::vector<json>{json::array(), {1.0}, json(7, 1.0)})
      EXPECT_THAT(refused(scaled({{key, list}})), HasSubstr(number + " has")) << list;
    for (const json& value : std::vector<json>{0, -1, 1e-9, 1e9}) {
      json list = saved()["rope_parameters"][key];
      list[3] = value;
      EXPECT_THAT(refused(scaled({{key, list}})), HasSubstr(number + " has the number")) << value;
    }
    for (const json& value : std::vector<json>{"1.5", nullptr, true, json::array({1.0})}) {
      json list = saved()["rope_parameters"][key];
      list[3] = value;
      EXPECT_THAT(refused(scaled({{key, list}}), ErrorCode::kCorrupt), HasSubstr(key)) << value;
    }
    for (const json& value : std::vector<json>{nullptr, 2.0, "list", json::object()})
      EXPECT_THAT(refused(scaled({{key, value}}), ErrorCode::kCorrupt), HasSubstr(key)) << value;
    json lacking = saved();
    lacking["rope_parameters"].erase(key);
    EXPECT_THAT(refused(lacking, ErrorCode::kCorrupt), HasSubstr(key));
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  EXPECT_THAT(refused(with(saved(), {{kOriginal, nullptr}})), HasSubstr(kOriginal));
  for (const json& value : std::vector<json>{0, -4, "16", 1.5})
    EXPECT_THAT(refused(with(saved(), {{kOriginal, value}}), ErrorCode::kCorrupt),
                HasSubstr(kOriginal));
  EXPECT_THAT(refused(with(saved(), {{kOriginal, 1}})), HasSubstr("rope_original_context"));
  EXPECT_THAT(refused(scaled({{"attention_factor", 0}})), HasSubstr("attention_factor"));
  EXPECT_THAT(refused(scaled({{"factor", -2.0}}), ErrorCode::kCorrupt), HasSubstr("-2"));
  EXPECT_THAT(refused(scaled({{"factor", 0}})), HasSubstr("rope_factor above 0"));
}

TEST(LongRopeConfig, IsForPhi3AndItsListsAreForLongrope) {
  json llama = with(saved(), {{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}}});
  EXPECT_THAT(refused(llama), HasSubstr(R"("rope_type" is "longrope")"));
  EXPECT_THAT(refused(scaled({{"rope_type", "default"}})), HasSubstr("factor"));
  ModelShape shape = read_valid(saved()).shape;
  shape.numbers["architecture"] = architecture("llama");
  EXPECT_THAT(validate(shape).error().message(),
              HasSubstr("rope_scaling longrope is for other architectures, not llama"));
  shape = *preset_shape("llama3.2-1b");
  shape.lists["rope_short_factor"] = kShort;
  EXPECT_THAT(validate(shape).error().message(), HasSubstr("is for rope_scaling longrope"));
  shape.lists = {{"rope_factors", kShort}};
  EXPECT_THAT(validate(shape).error().message(), HasSubstr("rope_factors is not a list"));
  shape.lists = {{"rope_short_factor", {}}};
  EXPECT_THAT(validate(shape).error().message(), HasSubstr("empty list"));
}

TEST(LongRope, HasTheShortFactorsUpToTheOriginalContextAndTheLongOnesBeyondIt) {
  const Rope rope = rope_in(saved());
  for (const auto& [tokens, factors] :
       {std::pair{1, kShort}, std::pair{16, kShort}, std::pair{17, kLong}, std::pair{64, kLong}}) {
    const RotaryFrequencies made = rope_frequencies(rope, 12, tokens);
    EXPECT_FLOAT_EQ(made.scale, static_cast<float>(std::sqrt(1 + std::log(4.0) / std::log(16.0))));
    ASSERT_EQ(made.of_pair.size(), factors.size());
    for (std::size_t pair = 0; pair < factors.size(); ++pair) {
      const double wanted = 1 / (factors[pair] * std::pow(100.0, static_cast<double>(pair) / 6));
      EXPECT_NEAR(made.of_pair[pair], wanted, 1e-6 * wanted) << tokens;
    }
  }
  EXPECT_EQ(rope_frequencies(rope_in(scaled({{"attention_factor", 1.5}})), 12, 1).scale, 1.5F);
  EXPECT_EQ(rope_frequencies(rope_in(scaled({{"factor", 1.0}})), 12, 1).scale, 1);
  EXPECT_EQ(rope_frequencies(rope_in(scaled({{"factor", 0.5}})), 12, 64).scale, 1);
}

}  // namespace
}  // namespace sluice::engine
