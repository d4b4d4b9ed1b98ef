// A text that begins like the one before is fed from where they differ, and continues as if all of
// it had been fed.
#include "engine/run/token_feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "aio/split_mix.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/run/generation_run.h"
#include "engine/run/run_checkpoints.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr std::int64_t kContext = 24;
constexpr std::int64_t kOther = 63;  // a token that no text has

class TokenFeeds : public testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override {
    const auto run = small_.start();
    for (int i = 0; i < 5; ++i) run->step();
    auto checkpoints =
        RunCheckpoints::create(*run, *run->drives().saves, {.directory = run->config().run.dir});
    ASSERT_OK(checkpoints);
    ASSERT_OK((*checkpoints)->save({}));
    (*checkpoints)->wait();
    checkpoint_ = (*checkpoints)->finished().at(0).path;
    cached_ = generation();
    fresh_ = generation();
  }

  static std::vector<std::string> overrides() {
    std::vector<std::string> all = {"bf16.enabled=false", "run.device=cpu",
                                    "model.context=" + std::to_string(kContext)};
    all.insert(all.end(), GetParam().begin(), GetParam().end());
    return all;
  }

  std::unique_ptr<GenerationRun> generation() const {
    const config::Config config = small_.config();
    const auto plan = plan_memory(config, configured_layout(config, /*on_gpu=*/false),
                                  {.purpose = RunPurpose::kGeneration});
    if (!plan.ok()) throw std::runtime_error(plan.error().message());
    auto run = GenerationRun::create(config, *plan);
    if (!run.ok()) throw std::runtime_error(run.error().message());
    auto reader = CheckpointReader::open(*(*run)->drives().reads, checkpoint_, {.moments = false});
    if (!reader.ok()) throw std::runtime_error(reader.error().message());
    const Status loaded = (*run)->load(**reader, {});
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message());
    return std::move(*run);
  }

  // Feeds what the cache lacks, and returns the number of tokens that it had. The logits are
  // compared with those of the whole text.
  std::size_t answer(const Tokens& text) {
    const std::size_t known = cached_->restart_with(text);
    EXPECT_LT(known, text.size());
    const auto logits = cached_->feed(std::span(text).subspan(known));
    EXPECT_EQ(fresh_->restart_with(Tokens{kOther}), 0U);
    compare(logits, fresh_->feed(text), known == 0);
    return known;
  }
  // One more token, of an answer.
  void say(std::int64_t token) {
    const Tokens next = {token};
    compare(cached_->feed(next), fresh_->feed(next), false);
  }

  static void compare(const std::vector<float>& found, const std::vector<float>& expected,
                      bool same_bits) {
    ASSERT_EQ(found.size(), expected.size());
    if (same_bits) {
      EXPECT_EQ(found, expected);
    }
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 2e-5) << i;
  }

  const SmallRun small_{overrides()};
  std::string checkpoint_;
  std::unique_ptr<GenerationRun> cached_;
  std::unique_ptr<GenerationRun> fresh_;
};

TEST_P(TokenFeeds, FeedATextFromWhereItDiffersFromTheOneBefore) {
  EXPECT_EQ(answer({1, 8, 43, 40}), 0U);
  say(5);
  say(6);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11}), 6U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11}), 8U);  // the last token gives the logits
  say(3);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 2, 7, 9, 11, 3}), 5U);  // an answer that was forgotten
  EXPECT_EQ(answer({1, 8, 43}), 2U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 2}), 3U);
  EXPECT_EQ(answer({2, 8, 43, 40}), 0U);
  EXPECT_EQ(answer({4}), 0U);
  EXPECT_EQ(answer({4}), 0U);

  // Else the logits of a wrong cache would pass, too.
  answer({1, 8, 43, 40, 5});
  const auto logits = fresh_->feed(Tokens{6});
  answer({1, 8, 44, 40, 5});
  const auto others = fresh_->feed(Tokens{6});
  double difference = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    difference = std::max<double>(difference, std::abs(logits[i] - others[i]));
  EXPECT_GT(difference, 1e-3);
}

// The window slides over a text that fills the context, and the cache then begins in its middle.
TEST_P(TokenFeeds, FeedAllOfATextWhoseBeginningIsNoLongerSeen) {
  Tokens text;
  for (std::int64_t i = 0; i < kContext; ++i) text.push_back(i + 1);
  EXPECT_EQ(answer(text), 0U);
  say(40);
  say(41);
  EXPECT_EQ(answer(text), 0U);
  text.push_back(42);
  EXPECT_EQ(answer(text), 0U);  // longer than the context: its last tokens
  EXPECT_EQ(answer(text), 0U);
  text.erase(text.begin());
  EXPECT_EQ(answer(text), text.size() - 1);
}

TEST_P(TokenFeeds, GiveTheLogitsOfRandomTexts) {
  const std::uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  aio::SplitMix random(seed);
  Tokens text = {1};
  std::size_t known = 0;
  for (int i = 0; i < 60; ++i) {
    text.resize(random.below(text.size()) + 1);
    for (std::size_t more = random.below(12); more > 0 && text.size() < kContext - 4; --more)
      text.push_back(static_cast<std::int64_t>(random.below(3)) + 1);
    known += answer(text);
    for (std::size_t more = random.below(3); more > 0; --more) say(2);
  }
  EXPECT_GT(known, 100U);
}

// Beyond rope_original_context the keys of a text depend on its length.
class FeedsOfDynamicRope : public TokenFeeds {};

TEST_P(FeedsOfDynamicRope, FeedAllOfALongTextAndOfOneThatFollowsIt) {
  EXPECT_EQ(answer({1, 8, 43}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9}), 3U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11, 12}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 40}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5}), 4U);
}

INSTANTIATE_TEST_SUITE_P(Of, FeedsOfDynamicRope,
                         testing::Values(of_llama({"model.rope_scaling=dynamic",
                                                   "model.rope_factor=2",
                                                   "model.rope_original_context=8"})));

// Beyond rope_original_context all keys are others, but they stay as they are.
class FeedsOfLongRope : public TokenFeeds {};

TEST_P(FeedsOfLongRope, FeedAllOfATextOnceItIsBeyondTheOriginalContext) {
  EXPECT_EQ(answer({1, 8, 43}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9}), 3U);
  // One more token of the answer: as if all of it had been fed.
  const auto grown = cached_->feed(Tokens{11});
  fresh_->restart_with(Tokens{kOther});
  compare(grown, fresh_->feed(Tokens{1, 8, 43, 40, 5, 6, 7, 9, 11}), true);
  say(3);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11, 3, 12}), 10U);
  EXPECT_EQ(answer({1, 8, 43, 40, 5, 6, 7, 9, 11, 2}), 9U);
  EXPECT_EQ(answer({1, 8, 43, 41, 5, 6, 7, 9, 11, 2}), 0U);  // what they share is short
  EXPECT_EQ(answer({1, 8, 43, 41}), 0U);
  EXPECT_EQ(answer({1, 8, 43, 41, 5, 6, 7, 9, 11, 2}), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Of, FeedsOfLongRope,
    testing::Values(of_llama({"model.architecture=phi3", "model.rope_scaling=longrope",
                              "model.rope_factor=4", "model.rope_original_context=8",
                              "model.rope_short_factor=[1,1,1.25,1.5,2,2,3,4]",
                              "model.rope_long_factor=[2,3,4,6,7,8,9,13]"})));

INSTANTIATE_TEST_SUITE_P(Of, TokenFeeds,
                         testing::Values(std::vector<std::string>{}, of_llama(),
                                         of_llama({"model.architecture=mistral",
                                                   "model.window=5"})),
                         [](const auto& it) { return "model" + std::to_string(it.index); });

}  // namespace
}  // namespace sluice::engine
