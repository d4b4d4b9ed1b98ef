// Models with experts: their config.json, sizes and refusals.
#include <gmock/gmock.h>

#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "tests/engine/model/config_reading.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The file that transformers 5.23 saves for a small model.
const json& saved_qwen3_moe() {
  static const json saved = json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": null, "decoder_sparse_step": 1, "dtype": "float32", "eos_token_id": null,
    "head_dim": 24, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02,
    "intermediate_size": 72, "max_position_embeddings": 64, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 20, "norm_topk_prob": true,
    "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "num_local_experts": 6, "output_router_logits": false,
    "pad_token_id": null, "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "transformers_version": "5.23.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 101})");
  return saved;
}

const json& saved_mixtral() {
  static const json saved = json::parse(R"({
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "dtype": "float32", "eos_token_id": 2, "head_dim": null, "hidden_act": "silu",
    "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 72,
    "max_position_embeddings": 64, "model_type": "mixtral", "num_attention_heads": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "num_local_experts": 4, "output_router_logits": false, "pad_token_id": null,
    "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "sliding_window": null,
    "tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
    "vocab_size": 101})");
  return saved;
}

const json& saved_gpt_oss() {
  static const json saved = json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "bos_token_id": null, "dtype": "float32", "eos_token_id": null, "head_dim": 16,
    "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 96, "model_type": "gpt_oss", "num_attention_heads": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "num_local_experts": 6, "output_router_logits": false, "pad_token_id": null,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_theta": 150000.0, "rope_type": "yarn",
      "truncate": false},
    "router_aux_loss_coef": 0.001, "sliding_window": 7, "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "5.23.0",
    "use_cache": true, "vocab_size": 257})");
  return saved;
}

Result<HuggingFaceModel> parsed(const json& config) {
  return read_hugging_face_config(config.dump());
}

ModelShape model_of(const json& config) { return read_valid(config).shape; }

DecoderSpec shape_in(const json& config) { return spec_of(model_of(config)); }

void expect_experts(const ExpertsSpec& experts, const ExpertsSpec& wanted) {
  EXPECT_EQ(experts.count, wanted.count);
  EXPECT_EQ(experts.per_token, wanted.per_token);
  EXPECT_EQ(experts.width, wanted.width);
  EXPECT_EQ(experts.renormalises, wanted.renormalises);
  EXPECT_EQ(experts.fp32_weights, wanted.fp32_weights);
}

TEST(ExpertsConfig, ReadsWhatTransformersSaves) {
  const DecoderSpec qwen = shape_in(saved_qwen3_moe());
  expect_experts(qwen.block.experts,
                 {.count = 6, .per_token = 3, .width = 20, .renormalises = true});
  EXPECT_TRUE(qwen.block.attention.head_norms);
  EXPECT_EQ(qwen.block.attention.head_dim, 24);
  EXPECT_EQ(qwen.block.attention.rope.theta, 10000);
  EXPECT_EQ(qwen.window.tokens, 0);
  const DecoderSpec mixtral = shape_in(saved_mixtral());
  expect_experts(
      mixtral.block.experts,
      {.count = 4, .per_token = 2, .width = 72, .renormalises = true, .fp32_weights = true});
  EXPECT_FALSE(mixtral.block.attention.head_norms);
  EXPECT_EQ(mixtral.block.attention.head_dim, 12);
  EXPECT_EQ(mixtral.block.attention.rope.theta, 1e6);
  const DecoderSpec gpt_oss = shape_in(saved_gpt_oss());
  expect_experts(gpt_oss.block.experts,
                 {.count = 6, .per_token = 2, .width = 32, .renormalises = true});
  EXPECT_TRUE(gpt_oss.block.experts.bias && gpt_oss.block.experts.gate.limit == 7 &&
              gpt_oss.block.attention.sinks);
  EXPECT_TRUE(gpt_oss.block.attention.qkv_bias && gpt_oss.block.attention.output_bias &&
              !gpt_oss.block.attention.head_norms);
  EXPECT_TRUE(gpt_oss.window.has(0) && !gpt_oss.window.has(1) && gpt_oss.window.has(2));
  EXPECT_EQ(gpt_oss.window.tokens, 7);
  EXPECT_FALSE(gpt_oss.block.attention.rope.truncate);
}

// Without a word on it, windows alternate, and positions are gpt-oss'.
TEST(ExpertsConfig, WhatAGptOssDoesNotSayIsItsClassDefault) {
  const auto model = parsed({{"model_type", "gpt_oss"}});
  ASSERT_TRUE(model.ok()) << model.error().message();
  const ModelShape preset = *preset_shape("gpt-oss-120b");
  EXPECT_EQ(complete(model->shape).numbers, preset.numbers);
  EXPECT_EQ(model->shape.heads, preset.heads);
  EXPECT_EQ(model->shape.vocab, preset.vocab);
  const auto empty = parsed({{"model_type", "gpt_oss"}, {"rope_scaling", json::object()}});
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->shape.numbers, model->shape.numbers);
  const auto simple = parsed({{"model_type", "gpt_oss"}, {"rope_scaling", {{"type", "default"}}}});
  ASSERT_TRUE(simple.ok());
  EXPECT_EQ(spec_of(simple->shape).block.attention.rope.scaling, RopeScaling::kNone);
}

TEST(ExpertsConfig, ReadsMxfp4OfGptOssAlone) {
  const json quantized = {{"quantization_config", {{"quant_method", "mxfp4"}}}};
  EXPECT_EQ(refused(with(saved_gpt_oss(), quantized)), "accepted");
  EXPECT_THAT(refused(with(saved_qwen3_moe(), quantized)), HasSubstr("quantization_config"));
  for (const json& value : std::vector<json>{{{"quant_method", "fp8"}}, {{"quant_method", 4}}, 7})
    EXPECT_THAT(refused(with(saved_gpt_oss(), {{"quantization_config", value}})),
                HasSubstr("quantization_config"));
  for (const char* const key : {"swiglu_alpha", "swiglu_limit"})
    EXPECT_THAT(refused(with(saved_gpt_oss(), {{key, 3.5}})), HasSubstr(key));
}

// Files on the hub, which transformers 4 wrote.
TEST(ExpertsConfig, ReadsTheKeysOfTransformers4) {
  json earlier = saved_qwen3_moe();
  for (const char* const key : {"num_local_experts", "rope_parameters", "dtype"})
    earlier.erase(key);
  earlier.update({{"num_experts", 6},
                  {"max_window_layers", 48},
                  {"rope_scaling", nullptr},
                  {"rope_theta", 1000000.0},
                  {"torch_dtype", "bfloat16"}});
  const DecoderSpec shape = shape_in(earlier);
  expect_experts(shape.block.experts,
                 {.count = 6, .per_token = 3, .width = 20, .renormalises = true});
  EXPECT_EQ(shape.block.attention.rope.theta, 1e6);
}

TEST(ExpertsConfig, WhatAFileDoesNotSayIsItsClassDefault) {
  const auto qwen = parsed({{"model_type", "qwen3_moe"}});
  ASSERT_TRUE(qwen.ok());
  const DecoderSpec shape = spec_of(qwen->shape);
  expect_experts(shape.block.experts, {.count = 128, .per_token = 8, .width = 768});
  EXPECT_EQ(shape.block.hidden, 2048);
  EXPECT_EQ(shape.layers, 24);
  EXPECT_EQ(shape.block.attention.kv_heads, 4);
  EXPECT_EQ(shape.block.attention.head_dim, 64);
  EXPECT_EQ(shape.block.attention.rope.theta, 10000);
  EXPECT_TRUE(qwen->special.empty());
  const auto mixtral = parsed({{"model_type", "mixtral"}});
  ASSERT_TRUE(mixtral.ok());
  const DecoderSpec its = spec_of(mixtral->shape);
  expect_experts(
      its.block.experts,
      {.count = 8, .per_token = 2, .width = 14336, .renormalises = true, .fp32_weights = true});
  EXPECT_EQ(its.block.attention.rope.theta, 1e6);
  EXPECT_EQ(its.block.epsilon, 1e-5);
  EXPECT_EQ(its.window.tokens, 0);
  EXPECT_EQ(mixtral->special, (SpecialTokens{.begin = 1, .ends = {2}}));
}

TEST(ExpertsConfig, AllBlocksHaveTheWindowOrNone) {
  EXPECT_EQ(shape_in(with(saved_qwen3_moe(), {{"sliding_window", 8}})).window.tokens, 0);
  for (const json& config :
       {with(saved_qwen3_moe(), {{"sliding_window", 8}, {"use_sliding_window", true}}),
        with(saved_mixtral(), {{"sliding_window", 8}})}) {
    const DecoderSpec shape = shape_in(config);
    EXPECT_TRUE(shape.window.has(0) && shape.window.has(2));
    EXPECT_EQ(shape.window.tokens, 8);
  }
}

TEST(ExpertsConfig, WhatIsWrittenIsReadAgain) {
  for (const json& config :
       {saved_qwen3_moe(),
        with(saved_qwen3_moe(), {{"norm_topk_prob", false},
                                 {"attention_bias", true},
                                 {"use_sliding_window", true},
                                 {"sliding_window", 9}}),
        saved_mixtral(), with(saved_mixtral(), {{"sliding_window", 9}}), saved_gpt_oss(),
        with(saved_gpt_oss(), {{"attention_bias", false}, {"tie_word_embeddings", true}})}) {
    const auto model = parsed(config);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const json written = json::parse(family_of(model->shape).write_config(*model));
    const auto again = parsed(written);
    ASSERT_TRUE(again.ok()) << again.error().message();
    EXPECT_EQ(again->shape.numbers, model->shape.numbers);
    EXPECT_EQ(again->shape.ffn(), model->shape.ffn());
    // transformers reads the values that it wrote itself.
    for (const char* const key :
         {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
          "decoder_sparse_step", "mlp_only_layers", "router_jitter_noise", "output_router_logits",
          "use_sliding_window", "sliding_window", "intermediate_size", "head_dim", "layer_types",
          "attention_bias", "rope_parameters", "swiglu_alpha", "swiglu_limit"})
      if (config.contains(key) && !config[key].is_null()) {
        EXPECT_EQ(written[key], config[key]) << key;
      }
  }
}

TEST(ExpertsConfig, HasTheBalanceLossIfRouterLogitsAreOutput) {
  for (const json& config : {saved_qwen3_moe(), saved_mixtral(), saved_gpt_oss()}) {
    const auto coefficient = [&](json keys) {
      const auto model = parsed(with(config, std::move(keys)));
      return model.ok() ? balance_coefficient(model->shape) : -1;
    };
    EXPECT_EQ(coefficient({{"router_aux_loss_coef", 0.5}}), 0);
    EXPECT_EQ(coefficient({{"output_router_logits", true}, {"router_aux_loss_coef", 0.5}}), 0.5);
    EXPECT_EQ(coefficient({{"output_router_logits", true}, {"router_aux_loss_coef", nullptr}}),
              0.001);
    EXPECT_EQ(coefficient({{"output_router_logits", true}, {"router_aux_loss_coef", 0}}), 0);
    for (const json& wrong : std::vector<json>{-0.5, "0.5", json::array(), true})
      EXPECT_THAT(refused(with(config, {{"router_aux_loss_coef", wrong}}), ErrorCode::kCorrupt),
                  HasSubstr("router_aux_loss_coef"));
    const auto model =
        parsed(with(config, {{"output_router_logits", true}, {"router_aux_loss_coef", 0.5}}));
    const json written = json::parse(family_of(model->shape).write_config(*model));
    EXPECT_EQ(written["output_router_logits"], true);
    EXPECT_EQ(written["router_aux_loss_coef"], 0.5);
  }
}

TEST(ExpertsConfig, RefusesByKeyAndValueWhatItDoesNotCompute) {
  EXPECT_THAT(refused(with(saved_qwen3_moe(), {{"decoder_sparse_step", 2}})),
              HasSubstr("\"decoder_sparse_step\" is 2, but Sluice supports Qwen3-MoEs with"));
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"decoder_sparse_step", 0}})
    EXPECT_THAT(refused(with(saved_qwen3_moe(), {{key, value}})), HasSubstr(key));
  EXPECT_THAT(refused(with(saved_mixtral(), {{"router_jitter_noise", "x"}})),
              HasSubstr("router_jitter_noise"));
  EXPECT_THAT(refused(with(saved_qwen3_moe(), {{"mlp_only_layers", {0, 2}}})),
              HasSubstr("\"mlp_only_layers\" is [0,2]"));
  EXPECT_THAT(refused(with(saved_mixtral(), {{"router_jitter_noise", 0.1}})),
              HasSubstr("\"router_jitter_noise\" is 0.1, but Sluice supports Mixtrals"));
  EXPECT_EQ(refused(with(saved_qwen3_moe(), {{"mlp_only_layers", nullptr}})), "accepted");
  EXPECT_EQ(refused(with(saved_mixtral(), {{"decoder_sparse_step", 2}})), "accepted");
}

TEST(ExpertsConfig, RefusesNullWhereTransformersDoes) {
  for (const char* const key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                "norm_topk_prob", "num_key_value_heads", "decoder_sparse_step"})
    EXPECT_THAT(refused(with(saved_qwen3_moe(), {{key, nullptr}})),
                HasSubstr("\"" + std::string(key) + "\" is null"));
  EXPECT_THAT(refused(with(saved_mixtral(), {{"num_local_experts", nullptr}})),
              HasSubstr("\"num_local_experts\" is null"));
  EXPECT_EQ(refused(with(saved_mixtral(), {{"num_experts", nullptr}})), "accepted");
  EXPECT_THAT(refused(with(saved_gpt_oss(), {{"head_dim", nullptr}})), HasSubstr("head_dim"));
}

TEST(ExpertsConfig, RefusesNumbersWithWhichNoModelCanBeMade) {
  EXPECT_THAT(refused(with(saved_qwen3_moe(), {{"num_experts_per_tok", 7}})),
              AllOf(HasSubstr("experts_per_token is 7"), HasSubstr("6 experts")));
  EXPECT_THAT(refused(with(saved_mixtral(), {{"num_local_experts", 5000}})),
              HasSubstr("experts is 5000"));
  EXPECT_THAT(refused(with(saved_qwen3_moe(), {{"num_experts", 5}}), ErrorCode::kCorrupt),
              AllOf(HasSubstr("\"num_experts\" is 5"), HasSubstr("\"num_local_experts\" is 6")));
  for (const json& wrong : std::vector<json>{{{"num_local_experts", 0}},
                                             {{"num_local_experts", "6"}},
                                             {{"num_local_experts", 2.5}},
                                             {{"num_experts_per_tok", 0}},
                                             {{"num_experts_per_tok", -1}},
                                             {{"num_experts_per_tok", json::array()}},
                                             {{"moe_intermediate_size", 0}},
                                             {{"moe_intermediate_size", true}},
                                             {{"norm_topk_prob", 1}}})
    EXPECT_THAT(refused(with(saved_qwen3_moe(), wrong), ErrorCode::kCorrupt),
                HasSubstr(wrong.begin().key()));
  // One expert, and all of them, are models.
  EXPECT_EQ(refused(with(saved_mixtral(), {{"num_local_experts", 1}, {"num_experts_per_tok", 1}})),
            "accepted");
  EXPECT_EQ(refused(with(saved_qwen3_moe(), {{"num_experts_per_tok", 6}})), "accepted");
}

TEST(ExpertsShape, DenseModelsHaveNoExperts) {
  for (const char* const number :
       {"experts", "experts_per_token", "expert_width", "norm_topk_prob"}) {
    ModelShape dense = *preset_shape("qwen3-0.6b");
    dense.numbers[number] = 1;
    const Status valid = validate(dense);
    ASSERT_FALSE(valid.ok()) << number;
    EXPECT_THAT(valid.error().message(), HasSubstr(number));
    dense.numbers.erase(number);  // checkpoints of dense models have none of them
    EXPECT_TRUE(validate(dense).ok());
  }
}

TEST(ExpertsShape, NeedsItsNumbers) {
  for (const char* const preset : {"qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b"})
    for (const char* const number : {"experts", "experts_per_token"}) {
      ModelShape shape = *preset_shape(preset);
      shape.numbers[number] = 0;
      const Status valid = validate(shape);
      ASSERT_FALSE(valid.ok()) << number;
      EXPECT_THAT(valid.error().message(), HasSubstr(number));
    }
  // A width that is not said is the feed-forward's.
  ModelShape shape = *preset_shape("qwen3-30b-a3b");
  shape.numbers["expert_width"] = 0;
  EXPECT_EQ(spec_of(complete(shape)).block.experts.width, 6144);
  ModelShape mixtral = *preset_shape("mixtral-8x7b");
  mixtral.ffn_hidden = 1000;
  EXPECT_TRUE(validate(mixtral).ok());
  EXPECT_EQ(spec_of(mixtral).block.experts.width, 1000);
  mixtral.numbers["expert_width"] = 1000;
  EXPECT_FALSE(validate(mixtral).ok());
}

TEST(ExpertsShape, CountsAllParametersAndThoseOfAToken) {
  const auto counts = [](const char* preset) {
    const ModelLayout model = model_layout({.shape = *preset_shape(preset)});
    return std::pair(model.parameter_elements(), model.active_elements());
  };
  // From the index files on the hub; active: 120 of 128 experts, or 6 of 8, are idle.
  EXPECT_EQ(counts("qwen3-30b-a3b"),
            std::pair(std::uint64_t{30'532'122'624},
                      std::uint64_t{30'532'122'624} - std::uint64_t{48} * 120 * 3 * 2048 * 768));
  EXPECT_EQ(counts("mixtral-8x7b"),
            std::pair(std::uint64_t{46'702'792'704},
                      std::uint64_t{46'702'792'704} - std::uint64_t{32} * 6 * 3 * 4096 * 14336));
  constexpr std::uint64_t kGptOssExpert = 3 * 2880 * 2880 + 3 * 2880;
  EXPECT_EQ(counts("gpt-oss-20b"),
            std::pair(std::uint64_t{20'914'757'184},
                      std::uint64_t{20'914'757'184} - 24 * 28 * kGptOssExpert));
  const auto [all, active] = counts("qwen3-0.6b");
  EXPECT_EQ(all, active);
}

TEST(ExpertsShape, AdaptersAreAttentionsAndThoseOfAllExperts) {
  const ModelShape shape = *preset_shape("qwen3-30b-a3b");
  const ModelFamily& family = family_of(shape);
  const auto targets = family.adapter_targets(shape);
  EXPECT_THAT(targets, ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "experts"));
  EXPECT_EQ(family.adapter_targets(*preset_shape("qwen3-0.6b")).size(), 7U);
  LoraRecipe lora = {.rank = 2, .alpha = 4, .targets = {"q_proj"}};
  EXPECT_TRUE(validate(lora, shape).ok());
  const ModelLayout adapted = model_layout({.shape = shape, .lora = lora});
  EXPECT_EQ(adapted.active_elements(), model_layout({.shape = shape}).active_elements());
  for (const char* const target : {"gate_proj", "up_proj", "down_proj", "gate"}) {
    lora.targets = {target};
    const Status valid = validate(lora, shape);
    ASSERT_FALSE(valid.ok()) << target;
    EXPECT_THAT(valid.error().message(), HasSubstr(target));
  }
}

// Replaces values anywhere in the file. The result is a model, valid or not, or a sentence.
TEST(ExpertsConfig, MutatedFilesAreReadOrRefusedWithASentence) {
  const std::vector<json> values = {nullptr,       true, false, -1, 0,         1,   2.5,
                                    1e300,         "",   "x",   7,  1LL << 62, {0}, json::array(),
                                    json::object()};
  std::mt19937 draw(5);
  int models = 0;
  for (const json& saved : {saved_qwen3_moe(), saved_mixtral(), saved_gpt_oss()})
    for (int i = 0; i < 3000; ++i) {
      json config = saved;
      for (unsigned changes = 1 + draw() % 3; changes > 0; --changes) {
        auto entry = config.begin();
        std::advance(entry, static_cast<std::ptrdiff_t>(draw() % config.size()));
        *entry = values[draw() % values.size()];
      }
      config["model_type"] = saved["model_type"];
      const auto model = parsed(config);
      if (!model.ok()) {
        EXPECT_GT(model.error().message().size(), 15U) << config;
        continue;
      }
      if (!validate(model->shape).ok() || model->shape.layers > 100) continue;
      ++models;
      const ModelLayout layout = model_layout({.shape = model->shape});
      EXPECT_GT(layout.units(), 2);
      EXPECT_LE(layout.active_elements(), layout.parameter_elements());
    }
  EXPECT_GT(models, 300);
}

}  // namespace
}  // namespace sluice::engine
