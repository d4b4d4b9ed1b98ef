#include "engine/config/lr_schedule.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using Json = nlohmann::json;

// The values were computed by DeepSpeed's own code: make_lr_goldens.py.
Json goldens() {
  std::ifstream file(data_file("lr_schedules.json"));
  return Json::parse(file);
}

Schedule schedule_of(const Json& golden, double optimizer_lr) {
  Json run = {{"train_batch_size", 1}, {"optimizer", {{"params", {{"lr", optimizer_lr}}}}}};
  run["scheduler"] = {{"type", golden["type"]}, {"params", golden["params"]}};
  // DeepSpeed lets a decay end before its warm-up, and a momentum grow beyond 1. Here such a run
  // has to end before that.
  run["run"] = {{"steps", golden["params"].value("total_num_steps", 10)}};
  return accepted(resolve_run(run.dump())).config.schedule;
}

TEST(LrSchedule, HasTheValuesOfDeepSpeedsCode) {
  const Json all = goldens();
  ASSERT_GE(all["cases"].size(), 17U);
  for (const Json& golden : all["cases"]) {
    SCOPED_TRACE(golden["type"].dump() + " " + golden["params"].dump());
    const Schedule schedule = schedule_of(golden, all["optimizer_lr"]);
    for (std::size_t step = 0; step < golden["lr"].size(); ++step) {
      const auto applied = static_cast<std::int64_t>(step);
      const auto wanted = betas(schedule, applied);
      EXPECT_DOUBLE_EQ(learning_rate(schedule, applied), golden["lr"][step]) << "step " << step;
      EXPECT_DOUBLE_EQ(wanted[0], golden["betas"][step][0]) << "step " << step;
      EXPECT_DOUBLE_EQ(wanted[1], golden["betas"][step][1]) << "step " << step;
    }
  }
}

TEST(LrSchedule, IsTheOptimizersRateWhereThereIsNoScheduler) {
  const auto resolved = accepted(resolve_run(
      R"({"train_batch_size": 1, "optimizer": {"params": {"lr": 0.25, "betas": [0.5, 0.75]}}})"));
  const Schedule& schedule = resolved.config.schedule;
  EXPECT_EQ(schedule.type, ScheduleType::kConstant);
  for (const std::int64_t step : {0, 1, 1000000}) {
    EXPECT_EQ(learning_rate(schedule, step), 0.25);
    EXPECT_EQ(betas(schedule, step), (Betas{0.5, 0.75}));
  }
}

TEST(LrSchedule, StaysFiniteFarBeyondItsEnd) {
  const Json all = goldens();
  for (const Json& golden : all["cases"]) {
    const Schedule schedule = schedule_of(golden, all["optimizer_lr"]);
    const double rate = learning_rate(schedule, std::int64_t{1} << 40);
    EXPECT_TRUE(std::isfinite(rate)) << golden["type"];
    EXPECT_GE(rate, 0) << golden["type"];
  }
}

}  // namespace
}  // namespace sluice::config
