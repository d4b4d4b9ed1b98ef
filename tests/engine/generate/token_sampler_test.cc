#include "engine/generate/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

TEST(TokenSampler, LeavesWhatTransformersWarpersLeave) {
  std::ifstream file(std::string(GENERATE_TEST_DATA) + "/sampling.json");
  const auto goldens = nlohmann::json::parse(file);
  ASSERT_GT(goldens["cases"].size(), 300U);
  for (const auto& golden : goldens["cases"]) {
    SCOPED_TRACE(golden.dump());
    const auto logits = goldens["logits"][golden["logits"]].get<std::vector<float>>();
    const std::vector<double> ours = token_probabilities(
        logits,
        {.temperature = golden["temperature"], .top_k = golden["top_k"], .top_p = golden["top_p"]});
    const auto theirs = golden["probabilities"].get<std::vector<double>>();
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-6) << i;
  }
}

TEST(TokenSampler, DrawsEachTokenAsOftenAsItsProbabilitySays) {
  const std::vector<float> logits = {1, -1, 0.5, 2, -3};
  const SamplingOptions options{.temperature = 0.9, .top_k = 4};
  const std::vector<double> expected = token_probabilities(logits, options);
  EXPECT_EQ(expected.back(), 0);
  std::vector<int> drawn(logits.size(), 0);
  TokenSampler sampler(options, 7);
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) ++drawn[static_cast<std::size_t>(sampler.next(logits))];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double deviation = std::sqrt(expected[i] * (1 - expected[i]) / kDraws);
    EXPECT_NEAR(static_cast<double>(drawn[i]) / kDraws, expected[i], 5 * deviation) << i;
  }
}

TEST(TokenSampler, DrawsTheSameForASeedAndAnotherForAnother) {
  const std::vector<float> logits(100, 0);
  const auto draws = [&](std::uint64_t seed) {
    TokenSampler sampler({}, seed);
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < 8; ++i) tokens.push_back(sampler.next(logits));
    return tokens;
  };
  // Pinned: a seed must give the same text forever.
  EXPECT_EQ(draws(0), (std::vector<std::int64_t>{88, 43, 2, 97, 10, 32, 17, 77}));
  EXPECT_NE(draws(0), draws(1));
}

TEST(TokenSampler, TakesTheFirstOfTheLargestAtTemperature0) {
  const std::vector<float> logits = {0, 3, -1, 3};
  TokenSampler sampler({.temperature = 0}, 1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.next(logits), 1);
}

TEST(TokenSampler, SaysThatLogitsAreNoNumbers) {
  const std::vector<float> logits = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THROW(token_probabilities(logits, {.temperature = 0}), std::runtime_error);
}

TEST(TokenSampler, RefusesOptionsThatLeaveNothing) {
  EXPECT_TRUE(validate(SamplingOptions{}).ok());
  EXPECT_TRUE(validate(SamplingOptions{.temperature = 0, .top_k = 1, .top_p = 0.1}).ok());
  for (const SamplingOptions& wrong :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5},
        SamplingOptions{.temperature = std::nan("")}}) {
    const Status status = validate(wrong);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message().rfind("--", 0), 0U);
  }
}

}  // namespace
}  // namespace sluice::engine
