#include "engine/step/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// The behaviour of DeepSpeed's own class (make_loss_scale_goldens.py).
nlohmann::json goldens() {
  std::ifstream file(TRAIN_TEST_DATA "/loss_scales.json");
  return nlohmann::json::parse(file);
}

LossScaleRules rules_of(const nlohmann::json& json) {
  return {.initial_scale_power = json.at("initial_scale_power"),
          .window_steps = json.at("loss_scale_window"),
          .hysteresis = json.at("hysteresis"),
          .consecutive_hysteresis = json.at("consecutive_hysteresis"),
          .min_scale = json.at("min_loss_scale")};
}

LossScaleState state_of(const nlohmann::json& json) {
  return {.scale = json.at(0),
          .steps = json.at(1),
          .last_overflow_step = json.at(2),
          .hysteresis_left = json.at(3)};
}

TEST(LossScaler, FollowsDeepSpeedsStepByStep) {
  const auto cases = goldens();
  ASSERT_GT(cases.size(), 10U);
  int refused = 0;
  for (const auto& golden : cases) {
    SCOPED_TRACE(golden.at("rules").dump() + " " + golden.at("steps").get<std::string>());
    const LossScaleRules rules = rules_of(golden.at("rules"));
    auto state = initial_loss_scale(rules);
    ASSERT_TRUE(state.ok()) << state.error().message();
    const std::string steps = golden.at("steps");
    const auto& expected = golden.at("states");
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool refuses = golden.at("floor").get<bool>() && i + 1 == steps.size();
      EXPECT_EQ(update_loss_scale(rules, steps[i] == 'x', *state).ok(), !refuses) << "step " << i;
      ASSERT_EQ(*state, state_of(expected.at(i)))
          << "step " << i << ": a scale of " << state->scale << ", not " << expected.at(i).dump();
      EXPECT_TRUE(check_loss_scale(rules, *state).ok());
      refused += refuses ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 2);
}

TEST(LossScaler, SaysAtTheFloorWhatToDoAndLeavesRoomForTheUnit) {
  const LossScaleRules rules{.initial_scale_power = 0, .hysteresis = 1, .min_scale = 1};
  LossScaleState state = *initial_loss_scale(rules);
  const LossScaleState before = state;
  Status status = update_loss_scale(rules, true, state);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(state, before);
  const Error error = std::move(status).error().with_suffix(" (first seen in h.3)");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), ContainsRegex("loss scale of 1.*fp16.min_loss_scale"));
  EXPECT_THAT(error.message(), testing::EndsWith("train in bf16 (first seen in h.3)"));
}

TEST(LossScaler, NeverChangesAStaticScale) {
  const LossScaleRules rules{.static_scale = 1024};
  LossScaleState state = *initial_loss_scale(rules);
  EXPECT_EQ(state.scale, 1024);
  for (const bool overflow : {true, true, true, false}) {
    EXPECT_TRUE(update_loss_scale(rules, overflow, state).ok());
    EXPECT_EQ(state, *initial_loss_scale(rules));
  }
}

TEST(LossScaler, GoesOnWithAStaticScaleOfTheRulesAndADynamicOneOfTheCheckpoint) {
  const LossScaleState stored{.scale = 512, .steps = 9};
  EXPECT_EQ(*continued_loss_scale({.static_scale = 64}, stored), (LossScaleState{.scale = 64}));
  EXPECT_EQ(*continued_loss_scale({}, stored), stored);
  EXPECT_EQ(
      continued_loss_scale({.hysteresis = 2}, {.scale = 512, .hysteresis_left = 3}).error().code(),
      ErrorCode::kCorrupt);
}

TEST(LossScaler, NamesTheKeyThatIsOutOfRange) {
  const auto message = [](LossScaleRules rules) {
    const auto state = initial_loss_scale(rules);
    return state.ok() ? "accepted" : state.error().message();
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message({}), "accepted");
  EXPECT_THAT(message({.static_scale = -1}), HasSubstr("fp16.loss_scale must"));
  EXPECT_THAT(message({.static_scale = kNan}), HasSubstr("fp16.loss_scale must"));
  EXPECT_THAT(message({.initial_scale_power = 127}), HasSubstr("fp16.initial_scale_power must"));
  EXPECT_THAT(message({.window_steps = 0}), HasSubstr("fp16.loss_scale_window must"));
  EXPECT_THAT(message({.hysteresis = 0}), HasSubstr("fp16.hysteresis must"));
  EXPECT_THAT(message({.min_scale = 0}), HasSubstr("fp16.min_loss_scale must"));
  EXPECT_THAT(message({.min_scale = kInfinity}), HasSubstr("fp16.min_loss_scale must"));
}

TEST(LossScaler, RefusesAStoredStateThatTheRulesCannotReach) {
  const LossScaleRules rules{.hysteresis = 2};
  const LossScaleState good{
      .scale = 512, .steps = 9, .last_overflow_step = 8, .hysteresis_left = 1};
  EXPECT_TRUE(check_loss_scale(rules, good).ok());
  const auto refused = [&](auto change) {
    LossScaleState state = good;
    change(state);
    const Status status = check_loss_scale(rules, state);
    return !status.ok() && status.error().code() == ErrorCode::kCorrupt;
  };
  EXPECT_TRUE(refused([](auto& s) { s.scale = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.scale = std::numeric_limits<double>::infinity(); }));
  EXPECT_TRUE(refused([](auto& s) { s.steps = -1; }));
  EXPECT_TRUE(refused([](auto& s) { s.last_overflow_step = 9; }));
  EXPECT_TRUE(refused([](auto& s) { s.last_overflow_step = -2; }));
  EXPECT_TRUE(refused([](auto& s) { s.hysteresis_left = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.hysteresis_left = 3; }));
  const LossScaleRules fixed{.static_scale = 1024};
  EXPECT_FALSE(check_loss_scale(fixed, good).ok());
  EXPECT_TRUE(check_loss_scale(fixed, {.scale = 1024}).ok());
}

}  // namespace
}  // namespace sluice::engine
