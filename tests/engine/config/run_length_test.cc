// The length of a run and its schedule: steps, epochs and "auto" together, and the effect of making
// a run longer.
#include "engine/config/lr_schedule.h"
#include "engine/config/schedule_outlook.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

const char* const kAutoDecay = R"({
  "train_batch_size": 8, "optimizer": {"params": {"lr": 0.5}},
  "scheduler": {"type": "WarmupDecayLR",
                "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto",
                           "total_num_steps": "auto"}}})";

Sources sources_with(std::string text, std::vector<std::string> overrides,
                     std::optional<std::uint64_t> samples_per_epoch = {}) {
  return {.run_file = Source{"run.json", std::move(text)},
          .overrides = std::move(overrides),
          .facts = {.gpu = {}, .samples_per_epoch = samples_per_epoch}};
}

Resolved resolved_with(const std::string& text, std::vector<std::string> overrides,
                       std::optional<std::uint64_t> samples_per_epoch = {}) {
  return accepted(resolve(sources_with(text, std::move(overrides), samples_per_epoch)));
}

TEST(RunLength, EpochsReachTheScheduleOnceTheDataIsKnown) {
  const Resolved resolved = resolved_with(kAutoDecay, {"run.epochs=2"}, 5982);
  const Config& config = resolved.config;
  EXPECT_EQ(config.run.steps, 1496);  // 1495.5
  EXPECT_EQ(config.schedule.warmup.total_steps, 1496);
  EXPECT_EQ(config.schedule.warmup.steps, 149);
  EXPECT_FALSE(resolved.missing_facts.samples_per_epoch);
  EXPECT_GT(learning_rate(config.schedule, 1495), 0);
  EXPECT_EQ(report_on(resolved, "run.steps").reason,
            "run.epochs 2.0 x 5982 sequences / train_batch_size 8");
  // A short run of half an epoch does not consist of warm-up only.
  EXPECT_EQ(resolved_with(kAutoDecay, {"run.epochs=0.5"}, 160).config.schedule.warmup.steps, 1);
}

TEST(RunLength, IsWholeStepsThatCoverTheEpochs) {
  const auto steps = [](const char* epochs, std::uint64_t samples) {
    return resolved_with(R"({"train_batch_size": 1})", {std::string("run.epochs=") + epochs},
                         samples)
        .config.run.steps;
  };
  EXPECT_EQ(steps("0.1", 30), 3);  // 3.0000000000000004
  EXPECT_EQ(steps("0.7", 10), 7);
  EXPECT_EQ(steps("1.01", 100), 101);
  EXPECT_EQ(steps("1.011", 100), 102);
  EXPECT_EQ(steps("0.001", 5), 1);
  EXPECT_EQ(steps("3", 1'000'000'007), 3'000'000'021);
}

TEST(RunLength, StaysOpenUntilTheDataIsKnown) {
  const Resolved open = resolved_with(kAutoDecay, {"run.epochs=2"});
  EXPECT_TRUE(open.missing_facts.samples_per_epoch);
  EXPECT_EQ(open.config.run.steps, kOpenSteps);
  EXPECT_EQ(report_on(open, "run.steps").value, "\"auto\"");
  EXPECT_THAT(report_on(open, "run.steps").reason, HasSubstr("data is opened"));
  for (const std::string& text : {to_json(open), to_json(open.config)}) {
    const Resolved known = resolved_with(text, {}, 400);
    EXPECT_EQ(known.config.run.steps, 100);
    EXPECT_EQ(known.config.schedule.warmup.total_steps, 100);
    EXPECT_EQ(known.config.schedule.warmup.steps, 10);
  }
}

TEST(RunLength, IsStepsOrEpochsAndTheLaterSourceWins) {
  const std::string both = R"({"train_batch_size": 8, "run": {"steps": 7, "epochs": 2}})";
  EXPECT_THAT(refusal(resolve_run(both)), HasSubstr("run.steps and run.epochs"));
  const std::string steps = R"({"train_batch_size": 8, "run": {"steps": 7}})";
  const Resolved by_epochs = resolved_with(steps, {"run.epochs=2"}, 80);
  EXPECT_EQ(by_epochs.config.run.steps, 20);
  EXPECT_EQ(reports_on(by_epochs, "run.steps").back().reason, "a later source gives run.epochs");
  const std::string epochs = R"({"train_batch_size": 8, "run": {"epochs": 2}})";
  const Resolved by_steps = resolved_with(epochs, {"run.steps=7"}, 80);
  EXPECT_EQ(by_steps.config.run.steps, 7);
  EXPECT_FALSE(by_steps.config.run.epochs.has_value());
  EXPECT_EQ(resolved_with(epochs, {"run.epochs=null"}, 80).config.run.steps, 1000);
  for (const char* none : {"0", "-1", "nan", "1e-9"})
    EXPECT_THAT(refusal(resolve_run(epochs, {std::string("run.epochs=") + none})),
                HasSubstr("run.epochs must be"));
}

TEST(RunLength, AKeptConfigurationIsTheSameRunAgainAndFollowsANewLength) {
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {"run.steps=100"}, {"run.epochs=2"}, {"run.steps=9", "optimizer.params.lr=0.25"}}) {
    const Resolved first = resolved_with(kAutoDecay, overrides, 400);
    const std::string kept = to_json(first);
    const Resolved again = resolved_with(kept, {}, 400);
    EXPECT_EQ(to_json(again), kept);
    EXPECT_EQ(to_json(again.config), to_json(first.config));
    const Config longer = resolved_with(kept, {"run.steps=400"}, 400).config;
    EXPECT_EQ(longer.schedule.warmup.total_steps, 400);
    EXPECT_EQ(longer.schedule.warmup.steps, 40);
    // And the learning rate that it took from the optimizer.
    const Config other = resolved_with(kept, {"optimizer.params.lr=0.125"}, 400).config;
    EXPECT_EQ(other.schedule.warmup.max_lr, 0.125);
    // A checkpoint has the numbers, even if the data has changed since.
    const Config stored = accepted(resolve_run(to_json(first.config))).config;
    EXPECT_EQ(stored.run.steps, first.config.run.steps);
    EXPECT_EQ(stored.schedule.warmup.total_steps, first.config.schedule.warmup.total_steps);
  }
}

TEST(RunLength, RefusesToGoOnWhereTheScheduleIsOver) {
  const Config was = resolved_with(kAutoDecay, {"run.steps=100"}).config;
  const std::string frozen = to_json(was);
  const Config now = resolved_with(frozen, {"run.steps=400"}).config;
  const Status status = check_steps_left(now, {.global_step = 100, .applied_step = 100});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message(),
              AllOf(ContainsRegex("299 of the 300 steps.*exactly 0"),
                    HasSubstr("step 100 (scheduler.params.total_num_steps)"),
                    HasSubstr("--set scheduler.params.total_num_steps=auto")));
  EXPECT_THAT(check_steps_left(now, {.global_step = 102, .applied_step = 102}).error().message(),
              HasSubstr("all 298 steps"));
  // Before that there is still something to learn, and the setting fixes the schedule.
  EXPECT_TRUE(check_steps_left(now, {.global_step = 99, .applied_step = 99}).ok());
  const Config mended =
      resolved_with(frozen, {"run.steps=400", "scheduler.params.total_num_steps=auto"}).config;
  EXPECT_TRUE(check_steps_left(mended, {.global_step = 100, .applied_step = 100}).ok());
  // A user who asks for a rate of 0 gets it.
  const Config zero =
      resolved_with(frozen, {"run.steps=400", "scheduler.params.warmup_max_lr=0"}).config;
  EXPECT_TRUE(check_steps_left(zero, {.global_step = 100, .applied_step = 100}).ok());
  // A cosine with a floor continues there; a cycle that ends at 0 does not.
  const auto after_100 = [](const std::string& scheduler) {
    const Config config = resolved_with(R"({"train_batch_size": 8, "run": {"steps": 400},
                                            "scheduler": {)" +
                                            scheduler + "}}",
                                        {})
                              .config;
    return check_steps_left(config, {.global_step = 100, .applied_step = 100}).ok();
  };
  EXPECT_TRUE(after_100(R"("type": "WarmupCosineLR",
                           "params": {"total_num_steps": 90, "warmup_num_steps": 9})"));
  EXPECT_FALSE(after_100(R"("type": "WarmupCosineLR",
                            "params": {"total_num_steps": 90, "warmup_num_steps": 9,
                                       "cos_min_ratio": 0})"));
  EXPECT_FALSE(after_100(R"("type": "OneCycle",
                            "params": {"cycle_min_lr": 0, "cycle_max_lr": 1,
                                       "cycle_first_step_size": 40})"));
}

TEST(RunLength, RefusesEpochsThatNeverLeaveTheFirstRateOfTheWarmUp) {
  const auto text = [](const std::string& scheduler) {
    return R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 0.5}}, "scheduler": {)" +
           scheduler + "}}";
  };
  const auto checked = [&](const std::string& scheduler, std::uint64_t steps,
                           const RunPosition& position = {}) {
    const Config config = resolved_with(text(scheduler), {"run.epochs=1"}, 8 * steps).config;
    return check_steps_left(config, position);
  };
  const std::string cosine = R"("type": "cosine", "params": {"warmup_ratio": 0.03})";
  EXPECT_THAT(checked(cosine, 1).error().message(),
              AllOf(ContainsRegex("one remaining step.*exactly 0"), HasSubstr("run.epochs"),
                    HasSubstr("scheduler.params.warmup_num_steps=0")));
  EXPECT_TRUE(checked(cosine, 2).ok());
  EXPECT_TRUE(checked(R"("type": "cosine", "params": {"warmup_num_steps": 0})", 1).ok());
  const std::string linear =
      R"("type": "WarmupLR", "params": {"warmup_num_steps": 9, "warmup_type": "linear")";
  EXPECT_THAT(checked(linear + "}", 2).error().message(),
              AllOf(HasSubstr("all 2 steps"), HasSubstr("warmup_min_lr to more")));
  EXPECT_TRUE(checked(linear + R"(, "warmup_min_lr": 0.1})", 2).ok());
  EXPECT_TRUE(checked(linear + R"(, "warmup_max_lr": 0})", 2).ok());
  EXPECT_TRUE(checked(linear + "}", 3).ok());
  EXPECT_TRUE(checked(linear + "}", 4, {.global_step = 3, .applied_step = 3}).ok());
  // A user who asks for a single step to try one gets a warning, and the step.
  const Config counted = resolved_with(text(cosine), {"run.steps=1"}).config;
  EXPECT_TRUE(check_steps_left(counted, {}).ok());
  EXPECT_THAT(end_of_schedule(counted, {}), HasSubstr("reaches only exactly 0"));
}

TEST(RunLength, SaysWhatASchedulesEndLeavesOfARun) {
  const auto said = [](const std::string& params, const char* steps) {
    const Config config =
        resolved_with(R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 0.5}},
                          "scheduler": {"type": "WarmupDecayLR", "params": {)" +
                          params + "}}}",
                      {std::string("run.steps=") + steps})
            .config;
    return end_of_schedule(config, {});
  };
  EXPECT_THAT(said(R"("total_num_steps": 1000, "warmup_num_steps": 10)", "1496"),
              AllOf(HasSubstr("ends at step 1000"), HasSubstr("last 495 steps"),
                    HasSubstr("exactly 0"), HasSubstr("=auto")));
  EXPECT_THAT(said(R"("warmup_num_steps": 1000)", "500"),
              AllOf(HasSubstr("within the warm-up"), HasSubstr("warmup_num_steps is 1000")));
  // DeepSpeed's first two updates use the warm-up's first rate.
  EXPECT_THAT(said(R"("warmup_num_steps": "auto")", "2"), HasSubstr("only exactly 0"));
  EXPECT_THAT(said(R"("warmup_num_steps": 10)", "500"), IsEmpty());
  EXPECT_THAT(said(R"("warmup_num_steps": "auto")", "500"), IsEmpty());
}

// Like DeepSpeed and transformers: a trial run of a script is shorter than its warm-up.
TEST(RunLength, WarnsOfADecayThatEndsBeforeTheWarmUp) {
  const auto of = [](const std::string& type, const std::string& params) {
    return resolved_with(R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 0.5}},
                             "scheduler": {"type": ")" +
                             type + R"(", "params": {)" + params + "}}}",
                         {"run.steps=20"})
        .config;
  };
  for (const char* type : {"WarmupDecayLR", "WarmupCosineLR", "linear", "cosine", "polynomial",
                           "warmup_stable_decay"}) {
    const Config config = of(type, R"("total_num_steps": 5, "warmup_num_steps": 10)");
    EXPECT_THAT(decay_before_warmup(config.schedule),
                AllOf(ContainsRegex("total_num_steps 5.*warmup_num_steps 10")))
        << type;
    EXPECT_THAT(end_of_schedule(config, {}), HasSubstr("is less than warmup_num_steps")) << type;
    EXPECT_GT(learning_rate(config.schedule, 9), learning_rate(config.schedule, 4)) << type;
    EXPECT_LT(learning_rate(config.schedule, 12), 0.1) << type;
  }
  EXPECT_THAT(decay_before_warmup(
                  of("linear", R"("total_num_steps": 10, "warmup_num_steps": 10)").schedule),
              IsEmpty());
  EXPECT_THAT(decay_before_warmup(of("WarmupLR", R"("warmup_num_steps": 10)").schedule), IsEmpty());
}

TEST(RunLength, SaysWhatTheScheduleWasAndIs) {
  const Config was = resolved_with(kAutoDecay, {"run.steps=100"}).config;
  const Config now = resolved_with(kAutoDecay, {"run.steps=400"}).config;
  const RunPosition end{.global_step = 101, .applied_step = 101};
  EXPECT_THAT(change_of_schedule(was, now, end),
              AllOf(ContainsRegex("step 102 was exactly 0.*now 0.4"),
                    ContainsRegex("run.steps was 100.*400"),
                    ContainsRegex("scheduler.params.total_num_steps was 100.*400"),
                    ContainsRegex("scheduler.params.warmup_num_steps was 10.*40")));
  EXPECT_THAT(change_of_schedule(was, was, {.global_step = 50, .applied_step = 50}), IsEmpty());
  EXPECT_THAT(change_of_schedule(was, now, {.global_step = 400, .applied_step = 400}), IsEmpty());
  // A longer run at a constant rate is no change.
  const char* const constant = R"({"train_batch_size": 8})";
  EXPECT_THAT(change_of_schedule(resolved_with(constant, {"run.steps=100"}).config,
                                 resolved_with(constant, {"run.steps=400"}).config, end),
              IsEmpty());
  // Skipped steps do not advance a schedule.
  EXPECT_THAT(change_of_schedule(was, now, {.global_step = 60, .applied_step = 50}),
              HasSubstr("step 61 was 0.28"));
}

// For any number of remaining steps.
TEST(RunLength, NamesTheFirstStepWithAnotherRate) {
  const auto decaying = [](const std::string& steps, const std::string& end) {
    const std::string params = R"("warmup_max_lr": 0.1, "warmup_num_steps": 3333,
                                  "total_num_steps": )" +
                               end;
    return resolved_with((R"({"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR",
                              "params": {)" +
                          params + "}}}")
                             .c_str(),
                         {"run.steps=" + steps})
        .config;
  };
  for (const char* const steps : {"100000", "9000000"}) {
    const Config was = decaying(steps, "4000");
    const Config now = decaying(steps, "8000");
    std::int64_t first = 0;
    while (learning_rate(was.schedule, first) == learning_rate(now.schedule, first)) ++first;
    EXPECT_GT(first, 3000);
    EXPECT_THAT(change_of_schedule(was, now, {}),
                HasSubstr("the learning rate of step " + std::to_string(first + 1) + " was"));
  }
}

TEST(RunLength, ASchedulesBadNumbersAreRefusedWithTheirKey) {
  const auto refused = [](const std::string& type, const std::string& params) {
    return refusal(resolve_run(R"({"train_batch_size": 8, "run": {"steps": 1000}, "scheduler":
                                   {"type": ")" +
                               type + R"(", "params": {)" + params + "}}}"));
  };
  const std::string bounds = R"("cycle_min_lr": 0.1, "cycle_max_lr": 0.5, )";
  EXPECT_THAT(refused("OneCycle", R"("cycle_min_lr": 0.5, "cycle_max_lr": 0.1)"),
              AllOf(HasSubstr("cycle_min_lr 0.5"), HasSubstr("cycle_max_lr 0.1")));
  EXPECT_THAT(refused("OneCycle", bounds + R"("cycle_min_mom": 0.9, "cycle_max_mom": 0.5)"),
              HasSubstr("cycle_min_mom 0.9"));
  EXPECT_THAT(refused("OneCycle", bounds + R"("cycle_max_mom": 1)"),
              HasSubstr("cycle_max_mom 1.0"));
  EXPECT_THAT(refused("OneCycle", bounds + R"("cycle_first_step_size": 0)"),
              ContainsRegex("cycle_first_step_size.*at least 1"));
  for (const char* rate : {"0.01", "-0.5"}) {
    EXPECT_THAT(refused("OneCycle", bounds + R"("cycle_first_step_size": 100,
                                       "decay_step_size": 10, "decay_mom_rate": )" +
                                        rate),
                AllOf(HasSubstr("decay_mom_rate"), HasSubstr("beta1")));
  }
  EXPECT_THAT(refused("LRRangeTest", R"("lr_range_test_step_size": 100,
                                        "lr_range_test_step_rate": -1)"),
              AllOf(HasSubstr("lr_range_test_step_rate -1.0"), HasSubstr("by step 1000")));
  EXPECT_THAT(refused("LRRangeTest", R"("lr_range_test_min_lr": 1e300,
                                        "lr_range_test_step_rate": 1e300)"),
              HasSubstr("infinity"));
  EXPECT_THAT(refused("LRRangeTest", R"("lr_range_test_min_lr": 0)"),
              HasSubstr("lr_range_test_min_lr is 0"));
  EXPECT_THAT(refused("LRRangeTest", R"("lr_range_test_step_size": 0)"),
              ContainsRegex("lr_range_test_step_size.*at least 1"));
  // A trial of three steps of a long schedule is no mistake.
  accepted(resolve_run(R"({"train_batch_size": 8, "run": {"steps": 3},
                           "scheduler": {"type": "WarmupDecayLR",
                                         "params": {"warmup_num_steps": 500}}})"));
}

}  // namespace
}  // namespace sluice::config
