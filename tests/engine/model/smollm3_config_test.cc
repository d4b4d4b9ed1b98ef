// SmolLM3's config.json and sizes, and which of its layers have rotary positions.
#include <gmock/gmock.h>

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
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 72,
    "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention",
                    "full_attention"],
    "max_position_embeddings": 64, "mlp_bias": false, "model_type": "smollm3",
    "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1], "num_attention_heads": 4,
    "num_hidden_layers": 5, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 2000000.0, "rope_type": "default"},
    "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.23.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 101})");
  return text;
}

json changed(const json& more) { return with(saved(), more); }

json without_layers(const json& more) {
  json config = changed(more);
  config.erase("layer_types");
  return config;
}

ModelShape read(const json& config) { return read_valid(config).shape; }

// no_rope_layers of the blocks.
std::vector<int> rotated(const DecoderSpec& spec) {
  std::vector<int> layers;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    layers.push_back(spec.block_at(layer).attention.rope.exists() ? 1 : 0);
  return layers;
}

std::vector<std::int64_t> windows(const DecoderSpec& spec) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    layers.push_back(spec.block_at(layer).attention.window);
  return layers;
}

using Rotated = std::vector<int>;
using Windows = std::vector<std::int64_t>;

TEST(SmolLm3Config, ReadsWhatTransformersSaves) {
  const DecoderSpec spec = spec_of(read(saved()));
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.block.attention.kv_heads, 2);
  EXPECT_EQ(spec.block.attention.head_dim, 12);
  EXPECT_EQ(spec.block.attention.rope.theta, 2e6);
  EXPECT_EQ(rotated(spec), (Rotated{1, 1, 1, 0, 1}));
  EXPECT_EQ(windows(spec), (Windows{0, 0, 0, 0, 0}));
}

TEST(SmolLm3Config, LayersWithoutRotaryPositionsAreAListOrAnInterval) {
  const std::pair<json, Rotated> cases[] = {
      {{{"no_rope_layers", nullptr}}, {1, 1, 1, 0, 1}},
      {{{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 2}}, {1, 0, 1, 0, 1}},
      {{{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 1}}, {0, 0, 0, 0, 0}},
      {{{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 6}}, {1, 1, 1, 1, 1}},
      // The list takes precedence, and may be longer than the model.
      {{{"no_rope_layers", {1, 0, 1, 0, 1, 1, 1}}}, {1, 0, 1, 0, 1}},
      {{{"no_rope_layers", {1, 1, 1, 1, 1}}}, {1, 1, 1, 1, 1}},
      {{{"no_rope_layers", {0, 0, 0, 0, 0}}}, {0, 0, 0, 0, 0}}};
  for (const auto& [more, layers] : cases)
    EXPECT_EQ(rotated(spec_of(read(changed(more)))), layers) << more;
}

TEST(SmolLm3Config, WithoutLayerTypesTheWindowIsWhereNoRotaryPositionsAre) {
  const json on = {{"use_sliding_window", true}, {"sliding_window", 8}};
  EXPECT_EQ(windows(spec_of(read(without_layers(on)))), (Windows{0, 0, 0, 8, 0}));
  EXPECT_EQ(windows(spec_of(read(without_layers({{"sliding_window", 8}})))),
            (Windows{0, 0, 0, 0, 0}));
  for (const Rotated& layers : {Rotated{1, 0, 1, 0, 1}, Rotated{0, 0, 0, 0, 0},
                                Rotated{1, 1, 1, 1, 1}, Rotated{1, 1, 1, 1, 0}}) {
    json derived = without_layers(on);
    derived["no_rope_layers"] = layers;
    json named = derived;
    Windows expected;
    for (const int rotates : layers) {
      expected.push_back(rotates == 1 ? 0 : 8);
      named["layer_types"].push_back(rotates == 1 ? "full_attention" : "sliding_attention");
    }
    EXPECT_EQ(windows(spec_of(read(derived))), expected);
    EXPECT_EQ(read(derived).numbers, read(named).numbers);
  }
}

TEST(SmolLm3Config, WritesWhatItReads) {
  const json sliding = {"full_attention", "sliding_attention", "full_attention",
                        "sliding_attention", "full_attention"};
  for (const json& config :
       {saved(), changed({{"tie_word_embeddings", false}, {"mlp_bias", true}, {"head_dim", 16}}),
        changed({{"no_rope_layers", {1, 1, 1, 1, 1}}, {"no_rope_layer_interval", 6}}),
        changed({{"no_rope_layers", {0, 0, 0, 0, 0}}, {"no_rope_layer_interval", 1}}),
        changed({{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", sliding}})})
    expect_writes_what_it_reads(config);
}

TEST(SmolLm3Config, HasTheDefaultsOfTransformersClass) {
  const auto model = read_hugging_face_config(R"({"model_type": "smollm3"})");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->special, (SpecialTokens{.begin = 128000, .ends = {128001}, .padding = 128004}));
  ModelShape published = *preset_shape("smollm3-3b");
  EXPECT_EQ(model->shape.context_tokens, 32768);
  published.numbers["rope_theta"] = 2e6;
  EXPECT_EQ(model->shape.numbers, published.numbers);
  EXPECT_EQ(model->shape.ffn(), published.ffn());
  EXPECT_EQ(model->shape.vocab, published.vocab);
}

TEST(SmolLm3Config, RefusesOtherModelsByKey) {
  const std::pair<const char*, json> others[] = {
      {"hidden_act", "gelu"},
      {"is_causal", false},
      {"head_dim", nullptr},
      {"partial_rotary_factor", 0.5},
      {"no_rope_layer_interval", nullptr},
      {"no_rope_layers", {1, 0, 1, 1, 1}},
      {"no_rope_layers", {0, 1, 1, 1, 0}},
      {"use_sliding_window", nullptr},
      {"layer_types", json(5, "sliding_attention")},  // without a window
      {"quantization_config", {{"bits", 4}}}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refused(changed({{key, value}})), HasSubstr(key)) << value;
  const std::pair<const char*, json> broken[] = {{"no_rope_layers", {1, 1, 1, 0}},
                                                 {"no_rope_layers", {1, 1, 1, 2, 1}},
                                                 {"no_rope_layers", 4},
                                                 {"no_rope_layers", {1, 1, 1, "0", 1}},
                                                 {"no_rope_layer_interval", 0},
                                                 {"no_rope_layer_interval", -4},
                                                 {"no_rope_layer_interval", 1.5},
                                                 {"sliding_window", 0},
                                                 {"layer_types", {"full_attention"}}};
  for (const auto& [key, value] : broken)
    EXPECT_THAT(refused(changed({{key, value}}), ErrorCode::kCorrupt), HasSubstr(key)) << value;
  // A file may name more layers than any program has memory for.
  const json large = {{"num_hidden_layers", std::int64_t{1} << 40},
                      {"no_rope_layers", nullptr},
                      {"use_sliding_window", true},
                      {"sliding_window", 8}};
  EXPECT_THAT(refused(without_layers(large), ErrorCode::kCorrupt), HasSubstr("num_hidden_layers"));
}

TEST(SmolLm3Config, OnlyItsClassHasLayersWithoutRotaryPositions) {
  ModelShape shape = *preset_shape("llama3.2-1b");
  shape.numbers["unrotated_interval"] = 4;
  const Status status = validate(shape);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("unrotated_interval"));
}

// One kind of units for each way to compute a block: their costs differ.
TEST(SmolLm3Layout, BlocksWithoutRotaryPositionsAreAKindOfTheirOwn) {
  const json on = {{"use_sliding_window", true},
                   {"sliding_window", 8},
                   {"layer_types",
                    {"full_attention", "sliding_attention", "full_attention", "sliding_attention",
                     "full_attention"}}};
  const ModelLayout model = model_layout({.shape = read(changed(on))});
  EXPECT_NE(&model.kind(1), &model.kind(2));
  EXPECT_NE(&model.kind(2), &model.kind(4));
  EXPECT_EQ(&model.kind(1), &model.kind(3));
  EXPECT_EQ(&model.kind(1), &model.kind(5));
  const ModelLayout plain = model_layout({.shape = read(saved())});
  EXPECT_NE(&plain.kind(1), &plain.kind(4));
  EXPECT_EQ(&plain.kind(1), &plain.kind(5));
}

// The published count.
TEST(SmolLm3Presets, HasTheParametersOfThePublishedModel) {
  const auto shape = preset_shape("smollm3-3b");
  ASSERT_TRUE(shape);
  EXPECT_TRUE(validate(*shape).ok());
  EXPECT_EQ(model_layout({.shape = *shape}).parameter_elements(), 3075098624U);
}

}  // namespace
}  // namespace sluice::engine
