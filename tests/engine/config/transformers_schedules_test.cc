// The schedules of transformers' get_scheduler(): their values, what follows from the run, and the
// messages if they end before it does.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/config/changes.h"
#include "engine/config/schedule_outlook.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

std::string run_file(const std::string& type, const std::string& params) {
  return R"({"train_batch_size": 8, "optimizer": {"params": {"lr": 0.5}}, "run": {"steps": 100},
             "scheduler": {"type": ")" +
         type + R"(", "params": {)" + params + "}}}";
}

Resolved resolved(const std::string& type, const std::string& params,
                  std::vector<std::string> overrides = {}) {
  return accepted(resolve_run(run_file(type, params), std::move(overrides)));
}

Schedule schedule(const std::string& type, const std::string& params) {
  return resolved(type, params).config.schedule;
}

// The values were computed by transformers' own code: make_transformers_lr_goldens.py.
TEST(TransformersSchedules, HaveTheValuesOfTransformersToTheLastBit) {
  std::ifstream file(data_file("transformers_lr_schedules.json"));
  const Json all = Json::parse(file);
  ASSERT_GE(all["cases"].size(), 24U);
  for (const Json& golden : all["cases"]) {
    SCOPED_TRACE(golden["type"].dump() + " " + golden["params"].dump());
    Json params = golden["params"];
    params["num_warmup_steps"] = golden["warmup"];
    const Json run = {{"train_batch_size", 1},
                      {"optimizer", {{"params", {{"lr", all["optimizer_lr"]}}}}},
                      {"scheduler", {{"type", golden["type"]}, {"params", params}}},
                      {"run", {{"steps", golden["total"]}}}};
    const Schedule made = accepted(resolve_run(run.dump())).config.schedule;
    for (std::size_t step = 0; step < golden["lr"].size(); ++step) {
      const auto applied = static_cast<std::int64_t>(step);
      EXPECT_EQ(learning_rate(made, applied), golden["lr"][step]) << "step " << step;
      EXPECT_EQ(learning_rate(made, applied, all["own_lr"]), golden["own_lr"][step])
          << "step " << step;
    }
  }
}

// Computed by hand: 100 steps at 0.5 with a warm-up of 10.
TEST(TransformersSchedules, AreWhatTheirNamesSay) {
  const std::string warmup = R"("num_warmup_steps": 10)";
  for (const char* type : {"linear", "cosine", "constant_with_warmup", "inverse_sqrt", "polynomial",
                           "cosine_with_restarts", "warmup_stable_decay"}) {
    SCOPED_TRACE(type);
    const Schedule made = schedule(type, warmup);
    EXPECT_EQ(learning_rate(made, 0), 0);
    EXPECT_EQ(learning_rate(made, 5), 0.25);
    EXPECT_EQ(learning_rate(made, 10), 0.5);
  }
  EXPECT_EQ(learning_rate(schedule("linear", warmup), 55), 0.25);
  EXPECT_EQ(learning_rate(schedule("linear", warmup), 99), 0.5 * (1.0 / 90));
  EXPECT_DOUBLE_EQ(learning_rate(schedule("cosine", warmup), 55), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(schedule("cosine", warmup), 40), 0.375);
  EXPECT_EQ(learning_rate(schedule("constant_with_warmup", warmup), 99), 0.5);
  EXPECT_EQ(learning_rate(schedule("inverse_sqrt", warmup), 40), 0.25);
  const Schedule floored = schedule("cosine_with_min_lr", warmup + R"(, "min_lr": 0.125)");
  EXPECT_DOUBLE_EQ(learning_rate(floored, 55), 0.3125);
  EXPECT_DOUBLE_EQ(learning_rate(floored, 100), 0.125);
  const Schedule wsd =
      schedule("warmup_stable_decay",
               warmup + R"(, "num_decay_steps": 40, "decay_type": "linear", "min_lr_ratio": 0.5)");
  EXPECT_EQ(learning_rate(wsd, 0), 0.25);  // its warm-up also begins at the floor
  EXPECT_EQ(learning_rate(wsd, 59), 0.5);
  EXPECT_EQ(learning_rate(wsd, 80), 0.375);
  const Schedule root =
      schedule("warmup_stable_decay", R"("num_decay_steps": 40, "decay_type": "1-sqrt")");
  EXPECT_EQ(learning_rate(root, 70), 0.25);  // a quarter of the way
}

TEST(TransformersSchedules, StayAtTheirLastRateBeyondTheirEnd) {
  const std::string total = R"("total_num_steps": 50, )";
  for (const auto& [type, params, last] : std::vector<std::tuple<const char*, const char*, double>>{
           {"linear", R"("warmup_steps": 5)", 0},
           {"cosine", R"("warmup_steps": 5)", 0},
           {"cosine_with_restarts", R"("num_cycles": 2)", 0},
           {"cosine_with_min_lr", R"("min_lr_rate": 0.25)", 0.125},
           {"polynomial", R"("lr_end": 0.125)", 0.125},
           {"warmup_stable_decay", R"("min_lr_ratio": 0.25)", 0.125}}) {
    SCOPED_TRACE(type);
    const Schedule made = schedule(type, total + params);
    EXPECT_GT(learning_rate(made, 49), last);
    for (const std::int64_t step : {std::int64_t{50}, std::int64_t{77}, std::int64_t{1} << 40})
      EXPECT_NEAR(learning_rate(made, step), last, 1e-15);
  }
}

TEST(TransformersSchedules, WarmUpByAShareOfAllSteps) {
  const Resolved by_share = resolved("cosine", R"("warmup_ratio": 0.034)");
  EXPECT_EQ(by_share.config.schedule.warmup.steps, 4);  // rounded up
  EXPECT_THAT(report_on(by_share, "scheduler.params.warmup_num_steps").reason,
              HasSubstr("warmup_ratio 0.034"));
  EXPECT_EQ(
      schedule("WarmupCosineLR", R"("warmup_ratio": 0.2, "total_num_steps": 60)").warmup.steps, 12);
  EXPECT_EQ(schedule("linear", "").warmup.steps, 0);
  EXPECT_EQ(schedule("WarmupLR", "").warmup.steps, 1000);
  // A trainer's arguments have both.
  EXPECT_EQ(schedule("linear", R"("warmup_steps": 0, "warmup_ratio": 0.1)").warmup.steps, 10);
  EXPECT_EQ(schedule("linear", R"("warmup_steps": 0.1)").warmup.steps, 10);
  EXPECT_EQ(schedule("linear", R"("warmup_steps": 1)").warmup.steps, 1);
  EXPECT_THAT(
      refusal(resolve_run(run_file("linear", R"("warmup_steps": 0.1, "warmup_ratio": 0.1)"))),
      HasSubstr("given twice"));
  EXPECT_THAT(refusal(resolve_run(run_file("linear", R"("warmup_steps": 1.5)"))),
              HasSubstr("which has a fraction"));
  EXPECT_THAT(refusal(resolve_run(run_file("linear", R"("warmup_steps": 5, "warmup_ratio": 0.1)"))),
              HasSubstr("and warmup_ratio both"));
  EXPECT_THAT(refusal(resolve_run(run_file("linear", R"("warmup_ratio": 1.5)"))),
              ContainsRegex("warmup_ratio.*at most 1"));
  const Resolved steps_later =
      resolved("linear", R"("warmup_ratio": 0.1)", {"scheduler.params.num_warmup_steps=3"});
  EXPECT_EQ(steps_later.config.schedule.warmup.steps, 3);
  EXPECT_EQ(to_json(accepted(resolve_run(to_json(steps_later))).config),
            to_json(steps_later.config));
  const Resolved share_later =
      resolved("linear", R"("warmup_num_steps": 3)", {"scheduler.params.warmup_ratio=0.5"});
  EXPECT_EQ(share_later.config.schedule.warmup.steps, 50);
}

TEST(TransformersSchedules, FollowTheLengthOfTheRun) {
  const Resolved made = resolved("warmup_stable_decay", R"("warmup_ratio": 0.1)");
  const auto parts = [](const Resolved& of) {
    const Schedule& it = of.config.schedule;
    return std::vector<std::int64_t>{it.warmup.steps, it.tail.stable_steps, it.tail.decay_steps};
  };
  EXPECT_EQ(parts(made), (std::vector<std::int64_t>{10, 80, 10}));
  const Resolved longer = accepted(resolve_run(to_json(made), {"run.steps=400"}));
  EXPECT_EQ(parts(longer), (std::vector<std::int64_t>{40, 320, 40}));
  // A checkpoint stores numbers, which does not count as a change of the share.
  const Config stored = accepted(resolve_run(to_json(made.config))).config;
  EXPECT_EQ(stored.schedule.warmup.steps, 10);
  EXPECT_TRUE(changed_keys(stored, made.config).empty());
  const Resolved open = accepted(
      resolve_run(run_file("warmup_stable_decay", R"("warmup_ratio": 0.1)"), {"run.epochs=2"}));
  EXPECT_EQ(parts(open), (std::vector<std::int64_t>{kOpenSteps, kOpenSteps, kOpenSteps}));
  EXPECT_EQ(parts(accepted(resolve({.run_file = Source{"run.json", to_json(open)},
                                    .facts = {.samples_per_epoch = 800}}))),
            (std::vector<std::int64_t>{20, 160, 20}));
  // If the run is too short, the warm-up comes first.
  EXPECT_EQ(parts(resolved("warmup_stable_decay", R"("warmup_steps": 200)")),
            (std::vector<std::int64_t>{200, 0, 0}));
}

TEST(TransformersSchedules, TakeTheDefaultsOfTransformers) {
  EXPECT_EQ(schedule("cosine", "").tail.cycles, 0.5);
  EXPECT_EQ(schedule("cosine_with_restarts", "").tail.cycles, 1);
  EXPECT_EQ(schedule("inverse_sqrt", "").tail.timescale, 10000);
  EXPECT_EQ(schedule("inverse_sqrt", R"("warmup_steps": 7)").tail.timescale, 7);
  EXPECT_EQ(schedule("polynomial", "").tail.end_lr, 1e-7);
  const Schedule wsd = schedule("warmup_stable_decay", "");
  EXPECT_EQ(wsd.warmup.type, WarmupType::kLinear);
  EXPECT_EQ(wsd.tail.decay_type, DecayType::kCosine);
}

TEST(TransformersSchedules, AreRefusedWhereTheyContradictThemselves) {
  const auto refused = [](const char* type, const char* params) {
    return refusal(resolve_run(run_file(type, params)));
  };
  EXPECT_THAT(refused("cosine_with_min_lr", ""), HasSubstr("min_lr or min_lr_rate"));
  EXPECT_THAT(refused("cosine_with_min_lr", R"("min_lr": 0.1, "min_lr_rate": 0.1)"),
              HasSubstr("min_lr and min_lr_rate"));
  EXPECT_THAT(refused("polynomial", R"("lr_end": 0.5)"),
              HasSubstr("less than optimizer.params.lr"));
  EXPECT_THAT(refused("warmup_stable_decay",
                      R"("total_num_steps": 50, "warmup_steps": 10, "num_decay_steps": 41)"),
              AllOf(HasSubstr("num_decay_steps 41"), HasSubstr("are more than"), HasSubstr("50")));
  EXPECT_THAT(refused("warmup_stable_decay", R"("warmup_type": "log")"),
              HasSubstr("linear, cosine and 1-sqrt"));
  EXPECT_THAT(refused("WarmupLR", R"("warmup_type": "cosine")"), HasSubstr("has log and linear"));
  EXPECT_THAT(refused("cosin", ""), HasSubstr("did you mean \"cosine\"?"));
  EXPECT_THAT(refused("linear", R"("num_warmup_step": 3)"), HasSubstr("num_warmup_steps"));
  // If two sources differ, the later one decides.
  const Resolved later =
      resolved("cosine_with_min_lr", R"("min_lr": 0.1)", {"scheduler.params.min_lr_rate=0.5"});
  EXPECT_EQ(learning_rate(later.config.schedule, 100), 0.25);
}

TEST(TransformersSchedules, SayWhatTheirEndLeavesOfARun) {
  const auto said = [](const char* type, const std::string& params) {
    return end_of_schedule(resolved(type, params).config, {});
  };
  for (const char* type : {"linear", "cosine", "cosine_with_restarts"})
    EXPECT_THAT(said(type, R"("total_num_steps": 60)"),
                AllOf(HasSubstr("step 60 (scheduler.params.total_num_steps)"),
                      ContainsRegex("last 40 steps.*exactly 0"),
                      HasSubstr("--set scheduler.params.total_num_steps=auto")));
  EXPECT_THAT(said("cosine_with_min_lr", R"("total_num_steps": 60, "min_lr": 0.125)"),
              HasSubstr("rate of 0.125"));
  EXPECT_THAT(said("warmup_stable_decay", R"("num_stable_steps": 30, "num_decay_steps": 20)"),
              AllOf(HasSubstr("step 50 (scheduler.params.num_stable_steps)"),
                    HasSubstr("its last 50 steps")));
  EXPECT_THAT(said("linear", R"("warmup_steps": 200)"), HasSubstr("within the warm-up"));
  for (const char* type : {"linear", "cosine", "constant_with_warmup", "inverse_sqrt", "polynomial",
                           "warmup_stable_decay"})
    EXPECT_THAT(said(type, R"("warmup_steps": 9)"), IsEmpty());
}

TEST(TransformersSchedules, AreNotContinuedWhereTheyAreOver) {
  const auto left = [](const char* type, const std::string& params, std::int64_t applied) {
    return check_steps_left(resolved(type, R"("total_num_steps": 60)" + params).config,
                            {.global_step = applied, .applied_step = applied});
  };
  EXPECT_TRUE(left("linear", "", 59).ok());
  EXPECT_THAT(left("linear", "", 60).error().message(),
              AllOf(HasSubstr("all 40 steps"), HasSubstr("ended at step 60")));
  EXPECT_FALSE(left("cosine", "", 60).ok());
  EXPECT_FALSE(left("warmup_stable_decay", "", 60).ok());
  EXPECT_TRUE(left("warmup_stable_decay", R"(, "min_lr_ratio": 0.1)", 60).ok());
  EXPECT_TRUE(left("cosine_with_min_lr", R"(, "min_lr": 0.1)", 60).ok());
  EXPECT_TRUE(left("polynomial", "", 60).ok());
}

// A parameter group's own rate is scaled like the optimizer's.
TEST(TransformersSchedules, ScaleARateOfItsOwnAsDeepSpeedsSchedulesDo) {
  const Schedule linear = schedule("linear", "");
  EXPECT_EQ(learning_rate(linear, 50, 0.125), 0.0625);
  const Schedule warmup =
      schedule("WarmupLR", R"("warmup_num_steps": 10, "warmup_type": "linear")");
  EXPECT_EQ(learning_rate(warmup, 6), 0.25);
  EXPECT_EQ(learning_rate(warmup, 6, 0.125), 0.0625);
  const Schedule cosine = schedule("WarmupCosineLR", R"("warmup_num_steps": 10)");
  for (const std::int64_t step : {0, 5, 40, 99})
    EXPECT_DOUBLE_EQ(learning_rate(cosine, step, 0.125), learning_rate(cosine, step) / 4);
  EXPECT_EQ(learning_rate(schedule("constant", ""), 7, 0.125), 0.125);
}

}  // namespace
}  // namespace sluice::config
