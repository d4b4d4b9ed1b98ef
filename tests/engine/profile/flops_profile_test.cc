// The work of a step, compared with DeepSpeed's profiler, and its tables.
#include "engine/profile/flops_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/families/families.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

ModelShape gpt2_small() {
  return {.layers = 12, .hidden = 768, .heads = 12, .context_tokens = 1024, .vocab = 50257};
}

// Grouped queries, and an untied head.
ModelShape small_llama() {
  ModelShape shape{.layers = 8,
                   .hidden = 512,
                   .heads = 8,
                   .context_tokens = 1024,
                   .vocab = 32000,
                   .ffn_hidden = 1376,
                   .family = "llama"};
  shape.numbers = {{"kv_heads", 2}};
  return complete(shape);
}

double macs(const ModelShape& shape, std::int64_t tokens, double batch) {
  double all = 0;
  for (const UnitFlops& unit : unit_flops(model_layout({.shape = shape}), tokens))
    all += unit.macs_of_token;
  return all * static_cast<double>(tokens) * batch;
}

// get_model_profile() of DeepSpeed 0.19.8 for transformers' models of these shapes (bench/README.md
// has the command). Its flops also include norms and activations, and Llama's rotary angles.
TEST(StepFlops, AreThoseThatDeepSpeedCounts) {
  struct Counted {
    ModelShape shape;
    std::int64_t batch;
    std::int64_t tokens;
    double macs;
    double flops;
  };
  const Counted counted[] = {{gpt2_small(), 1, 1024, 145'824'153'600, 291'746'694'144},
                             {small_llama(), 2, 512, 43'754'995'712, 87'521'263'616}};
  for (const Counted& it : counted) {
    const double own = macs(it.shape, it.tokens, static_cast<double>(it.batch));
    EXPECT_NEAR(own / it.macs, 1, 1e-6) << it.shape.family;
    EXPECT_NEAR(2 * own / it.flops, 1, 0.01) << it.shape.family;
  }
}

// Every product separately, with as many keys as a query sees.
TEST(StepFlops, CountOfAttentionWhatItsMaskLeaves) {
  const ModelShape shape = gpt2_small();
  constexpr std::int64_t kTokens = 64;
  double pairs = 0;
  for (std::int64_t query = 0; query < kTokens; ++query) pairs += static_cast<double>(query + 1);
  const auto hidden = static_cast<double>(shape.hidden);
  const double of_block = 2 * 12 * hidden * hidden * kTokens + 2 * 2 * hidden * pairs;
  const double of_head = 2 * hidden * static_cast<double>(shape.vocab) * kTokens;
  const Flops flops = flops_of_token(model_layout({.shape = shape}), kTokens);
  EXPECT_NEAR(flops.forward * kTokens, 12 * of_block + of_head, 1);
}

TEST(PassTotals, AreMeansOverSteps) {
  PassTotals totals(2);
  EXPECT_EQ(totals.seconds(PassPhase::kForward), 0);
  const PassSpan first[] = {{PassPhase::kForward, 0, 0, 0, 0, 1'000},
                            {PassPhase::kForward, 0, 0, 1, 1'000, 4'000},
                            {PassPhase::kBackward, 1, 0, 0, 4'000, 5'000}};
  const PassSpan second[] = {{PassPhase::kForward, 1, 0, 0, 0, 2'000}};
  totals.add_step(first);
  totals.add_step(second);
  EXPECT_EQ(totals.steps(), 2);
  EXPECT_DOUBLE_EQ(totals.seconds(0, PassPhase::kForward), 2e-6);
  EXPECT_DOUBLE_EQ(totals.seconds(1, PassPhase::kForward), 1e-6);
  EXPECT_DOUBLE_EQ(totals.seconds(PassPhase::kForward), 3e-6);
  EXPECT_DOUBLE_EQ(totals.seconds(PassPhase::kBackward), 0.5e-6);
}

class Tables : public testing::Test {
 protected:
  // Blocks take a millisecond forward, two to recompute, three backward; the second one keeps its
  // activations.
  Tables() {
    const ModelShape shape{
        .layers = 2, .hidden = 64, .heads = 2, .context_tokens = 32, .vocab = 96};
    profile_ = {.step = 3,
                .micro_batch = 2,
                .micro_batches = 4,
                .sequence_tokens = 32,
                .units = unit_flops(model_layout({.shape = shape}), 32),
                .keeps = {false, false, true, false},
                .passes = PassTotals(4)};
    constexpr std::int64_t kMs = 1'000'000;
    std::vector<PassSpan> spans;
    const auto add = [&](PassPhase phase, int unit, std::int64_t ms) {
      spans.push_back({.phase = phase, .unit = unit, .begin_ns = 0, .end_ns = ms * kMs});
    };
    for (const int block : {1, 2}) {
      add(PassPhase::kForward, block, 1);
      add(PassPhase::kBackward, block, 3);
    }
    add(PassPhase::kRecompute, 1, 2);
    add(PassPhase::kLoss, 3, 6);
    add(PassPhase::kAwaitParams, 1, 4);
    profile_.passes.add_step(spans);
    profile_.step_s = 0.025;
    profile_.update_s = 0.010;
    profile_.update_exposed_s = 0.003;
  }

  FlopsProfile profile_;
};

TEST_F(Tables, SayWhatTheStepComputedAndHowFast) {
  const std::string text = format_flops_profile(profile_, {});
  EXPECT_THAT(text, HasSubstr("FLOPs profile of step 3: 4 micro-batches of 2 x 32 tokens"));
  // A third of the loss is forward, like a third of its operations.
  EXPECT_THAT(text, testing::ContainsRegex("fwd latency +4\\.00 ms"));
  EXPECT_THAT(text, testing::ContainsRegex("bwd latency, with recompute +12\\.00 ms"));
  EXPECT_THAT(text, testing::ContainsRegex("iter latency +25\\.00 ms"));
  EXPECT_THAT(text, testing::ContainsRegex("samples/second +320\\.00"));
  EXPECT_THAT(text, testing::ContainsRegex("recompute +2\\.00 ms +8\\.0%"));
  EXPECT_THAT(text, testing::ContainsRegex("await parameters +4\\.00 ms +16\\.0%"));
  EXPECT_THAT(text, testing::ContainsRegex("await update +3\\.00 ms +12\\.0%"));
  EXPECT_THAT(text, testing::ContainsRegex("update, overlapped with compute +7\\.00 ms"));
  EXPECT_THAT(text, Not(HasSubstr("limit")));
  profile_.limit_flops_per_s = 2 * phase_flops(profile_, PassPhase::kForward) / 2e-3;
  EXPECT_THAT(format_flops_profile(profile_, {}),
              testing::ContainsRegex("forward +2\\.00 ms +8\\.0% .* 50\\.0%\n"));
}

TEST_F(Tables, CountWhatIsRecomputedOnlyWhereItIs) {
  const double tokens = profile_.tokens();
  EXPECT_EQ(tokens, 256);
  EXPECT_EQ(phase_flops(profile_, PassPhase::kRecompute),
            profile_.units[1].of_token.recompute * tokens);
  EXPECT_EQ(phase_flops(profile_, PassPhase::kForward),
            2 * profile_.units[1].of_token.forward * tokens);
  EXPECT_EQ(phase_flops(profile_, PassPhase::kLoss),
            trained_flops(profile_.units[3].of_token) * tokens);
  EXPECT_EQ(phase_flops(profile_, PassPhase::kAwaitParams), 0);
}

TEST_F(Tables, GoAsDeepAndNameAsManyAsIsAsked) {
  const std::string all = format_flops_profile(profile_, {});
  EXPECT_THAT(all, HasSubstr("depth 2"));
  EXPECT_THAT(all, testing::ContainsRegex("\nh\\.1 "));
  EXPECT_THAT(all, Not(HasSubstr("h.0 49.98 K, ")));
  const std::string kinds = format_flops_profile(profile_, {.module_depth = 1, .top_modules = 2});
  EXPECT_THAT(kinds, Not(HasSubstr("depth 2")));
  EXPECT_THAT(kinds, testing::ContainsRegex("depth 1 +block x 2 99\\.97 K, embedding 8\\.19 K"));
  EXPECT_THAT(kinds, testing::ContainsRegex("\nblock x 2 "));
  EXPECT_THAT(kinds, Not(testing::ContainsRegex("\nh\\.0 ")));
  const std::string model = format_flops_profile(profile_, {.module_depth = 0});
  EXPECT_THAT(model, Not(HasSubstr("depth 1")));
  const std::string summary = format_flops_profile(profile_, {.detailed = false});
  EXPECT_THAT(summary, HasSubstr("depth 2"));
  EXPECT_THAT(summary, Not(testing::ContainsRegex("\nh\\.1 ")));
}

TEST_F(Tables, AreJsonAsWell) {
  const auto json = nlohmann::json::parse(flops_profile_json(profile_));
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["phases"]["recompute"]["seconds"], 2e-3);
  EXPECT_EQ(json["phases"]["forward"]["flops"], phase_flops(profile_, PassPhase::kForward));
  EXPECT_TRUE(json["limit_flops_per_s"].is_null());
  ASSERT_EQ(json["units"].size(), 4U);
  EXPECT_EQ(json["units"][1]["unit"], "h.0");
  EXPECT_EQ(json["units"][1]["phases"]["await parameters"]["seconds"], 4e-3);
  EXPECT_FALSE(json["units"][2]["phases"].contains("recompute"));
  EXPECT_NEAR(json["flops_per_s"].get<double>(), json["flops"].get<double>() / 0.025, 1);
}

}  // namespace
}  // namespace sluice::engine
