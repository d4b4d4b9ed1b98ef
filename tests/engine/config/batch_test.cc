#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

std::array<std::int64_t, 3> sizes_of(const Resolved& resolved) {
  const BatchSizes& batch = resolved.config.batch;
  return {batch.train, batch.micro, batch.accumulation};
}

std::array<std::int64_t, 3> sizes(std::int64_t train, std::int64_t micro,
                                  std::int64_t accumulation) {
  return {train, micro, accumulation};
}

// With two ranks: train = micro x accumulation x 2.
std::array<std::int64_t, 3> completed(const std::string& text) {
  return sizes_of(accepted(resolve_run(text, {}, 2)));
}

TEST(BatchSizes, AreKeptWhenAllThreeAgree) {
  EXPECT_EQ(completed(R"({"train_batch_size": 48, "train_micro_batch_size_per_gpu": 4,
                          "gradient_accumulation_steps": 6})"),
            sizes(48, 4, 6));
}

TEST(BatchSizes, AreCompletedWhenOneIsMissing) {
  EXPECT_EQ(completed(R"({"train_batch_size": 48, "train_micro_batch_size_per_gpu": 4})"),
            sizes(48, 4, 6));
  EXPECT_EQ(completed(R"({"train_batch_size": 48, "gradient_accumulation_steps": 6})"),
            sizes(48, 4, 6));
  EXPECT_EQ(completed(R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 6})"),
            sizes(48, 4, 6));
}

TEST(BatchSizes, AreCompletedWhenTwoAreMissing) {
  EXPECT_EQ(completed(R"({"train_batch_size": 48})"), sizes(48, 24, 1));
  EXPECT_EQ(completed(R"({"train_micro_batch_size_per_gpu": 4})"), sizes(8, 4, 1));
}

TEST(BatchSizes, AreAskedForWhenNeitherBatchIsGiven) {
  EXPECT_THAT(refusal(resolve_run("{}")), HasSubstr("set train_batch_size"));
  EXPECT_THAT(refusal(resolve_run(R"({"gradient_accumulation_steps": 6})")),
              HasSubstr("no batch size"));
}

TEST(BatchSizes, StartFromOneWhenAllAreAuto) {
  EXPECT_EQ(completed(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                          "gradient_accumulation_steps": "auto"})"),
            sizes(2, 1, 1));
  EXPECT_EQ(completed(R"({"train_batch_size": "auto", "gradient_accumulation_steps": 5})"),
            sizes(10, 1, 5));
}

TEST(BatchSizes, ShowTheThreeNumbersAndAFixWhenTheyDisagree) {
  const std::string sentence = refusal(resolve_run(
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8,
          "gradient_accumulation_steps": 3})"));
  EXPECT_THAT(sentence, HasSubstr("train_batch_size 32"));
  EXPECT_THAT(sentence, HasSubstr("train_micro_batch_size_per_gpu 8"));
  EXPECT_THAT(sentence, HasSubstr("gradient_accumulation_steps 3"));
  EXPECT_THAT(sentence, HasSubstr("set train_batch_size to 24"));
}

TEST(BatchSizes, NameTheNearestThatCanBeDivided) {
  const std::string sentence =
      refusal(resolve_run(R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 8})"));
  EXPECT_THAT(sentence, HasSubstr("train_batch_size 30"));
  EXPECT_THAT(sentence, HasSubstr("24 or 32"));
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 3})", {}, 4)), HasSubstr("set it to 4"));
}

TEST(BatchSizes, AreRefusedWhenTheyAreBeyondAnyRun) {
  EXPECT_THAT(refusal(resolve_run(R"({"train_micro_batch_size_per_gpu": 1073741824,
                                      "gradient_accumulation_steps": 1073741824})")),
              HasSubstr("larger than any run"));
}

TEST(BatchSizes, OfALaterSourceOverruleTheThirdOfAnEarlierOne) {
  const auto resolved = accepted(
      resolve_both(R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4})",
                   R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8})"));
  EXPECT_EQ(sizes_of(resolved), sizes(256, 8, 32));
  const auto reports = reports_on(resolved, "gradient_accumulation_steps");
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].outcome, Outcome::kDerived);
  EXPECT_EQ(reports[1].outcome, Outcome::kIgnored);
  EXPECT_EQ(reports[1].source, "run.json");
}

TEST(BatchSizes, OfALaterSourceAreCheckedWhenItGivesOneAlone) {
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8,
                                      "gradient_accumulation_steps": 4})",
                                  {"train_micro_batch_size_per_gpu=4"})),
              HasSubstr("set train_batch_size to 16"));
}

TEST(Lanes, DivideTheMicroBatchesOfAStepOrAreRefusedWithTheNearestThatDo) {
  const auto refusal_of = [](const std::vector<std::string>& overrides) {
    return refusal(resolve_run(
        R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 12})", overrides));
  };
  EXPECT_THAT(refusal_of({"run.lanes=5"}),
              ContainsRegex("run.lanes 5.*12 micro-batches.*run.lanes to 4 or 6"));
  EXPECT_THAT(refusal_of({"run.lanes=4", "run.rounds=2"}),
              ContainsRegex("run.lanes 4 x run.rounds 2.*12 micro-batches.*run.lanes to 3 or 6"));
  EXPECT_THAT(refusal_of({"run.rounds=5"}), HasSubstr("run.rounds to 4 or 6"));
  EXPECT_THAT(refusal_of({"run.lanes=13"}), HasSubstr("set run.lanes to 12"));
  const Config config = resolve_run(R"({"train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 12, "run": {"lanes": 3, "rounds": 4}})")
                            ->config;
  EXPECT_EQ(config.run.lanes, 3);
  EXPECT_EQ(config.run.rounds, 4);
}

TEST(Lanes, AreDealtToRanksAsManyEach) {
  const auto on_ranks = [](std::int64_t world, const std::vector<std::string>& overrides = {}) {
    return resolve_run(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8})",
                       overrides, world);
  };
  EXPECT_EQ(accepted(on_ranks(1)).config.run.lanes, 1);
  EXPECT_EQ(accepted(on_ranks(3)).config.run.lanes, 3);
  EXPECT_EQ(accepted(on_ranks(3, {"run.lanes=12"})).config.run.lanes, 12);
  EXPECT_THAT(refusal(on_ranks(4, {"run.lanes=6"})), ContainsRegex("run.lanes 6.*4 or 8"));
  EXPECT_THAT(refusal(on_ranks(2, {"run.lanes=6"})), HasSubstr("run.lanes to 4 or 8"));
  EXPECT_THAT(refusal(on_ranks(4, {"run.lanes=1"})), ContainsRegex("run.lanes 1.*4 or 8"));
}

}  // namespace
}  // namespace sluice::config
