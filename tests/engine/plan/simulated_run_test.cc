// Steps in virtual time, compared with the step model, the arithmetic of a drive, and each other.
#include "engine/plan/simulate/simulated_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/observe/run_totals.h"
#include "engine/plan/report/plan_report.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/plan/plan_under_test.h"

namespace sluice::engine {
namespace {

struct Simulated {
  RunPlan plan;
  std::vector<StepMetrics> steps;
};

// Small models whose state is nevertheless on the drive.
Simulated simulate(const std::vector<std::string>& overrides, DescribedMachine machine,
                   TraceLog* trace = nullptr) {
  const config::Config config =
      planned_config(shape(6, 512, 8, 5003) +
                     std::vector<std::string>{"placement.record_elements=1000000"} + overrides);
  Simulated simulated{.plan = planned(config, {.machine = machine}), .steps = {}};
  EXPECT_TRUE(simulated.plan.placement.fits);
  auto steps = simulate_run(config, simulated.plan, {.steps = 3, .trace = trace});
  if (!steps.ok()) throw std::runtime_error(steps.error().message());
  simulated.steps = std::move(*steps);
  return simulated;
}

std::vector<std::string> devices(const std::string& params, const std::string& optimizer) {
  return {"zero_optimization.offload_param.device=" + params,
          "zero_optimization.offload_optimizer.device=" + optimizer,
          "zero_optimization.stage3_param_persistence_threshold=0"};
}

// Without drives the simulation equals the prediction.
TEST(SimulatedRun, IsThePredictedStepWhereThereAreNoDrives) {
  for (const char* optimizer : {"cpu", "none", "auto"}) {
    const Simulated simulated = simulate(devices("auto", optimizer), described());
    const offload::StepPrediction& predicted = simulated.plan.placement.prediction;
    ASSERT_EQ(simulated.steps.size(), 3);
    for (const StepMetrics& step : simulated.steps) {
      EXPECT_NEAR(step.step_ms, 1e3 * predicted.step_s, 0.001) << optimizer;
      EXPECT_NEAR(step.forward_ms, 1e3 * (predicted.forward_s - predicted.update_exposed_s), 0.001)
          << optimizer;
      EXPECT_NEAR(step.update_exposed_ms, 1e3 * predicted.update_exposed_s, 0.001) << optimizer;
      EXPECT_EQ(step.nvme_read_bytes + step.nvme_write_bytes, 0);
      EXPECT_NEAR(static_cast<double>(step.h2d_bytes), predicted.h2d_bytes, 1);
    }
  }
}

// Each step reads and writes all of the state once, including headers, and is never faster than the
// drive; the prediction is close.
TEST(SimulatedRun, MovesAllOfTheStateAtTheSpeedOfTheDrive) {
  for (const char* params : {"cpu", "nvme", "none"}) {
    DescribedMachine slow = described();
    slow.drive_read_gb_per_s = 0.5;
    slow.drive_write_gb_per_s = 0.25;
    const Simulated simulated = simulate(devices(params, "nvme"), slow);
    const offload::StepPrediction& predicted = simulated.plan.placement.prediction;
    for (const StepMetrics& step : simulated.steps) {
      const auto read = static_cast<double>(step.nvme_read_bytes);
      const auto written = static_cast<double>(step.nvme_write_bytes);
      EXPECT_NEAR(read, predicted.nvme_read_bytes, 0.25 * predicted.nvme_read_bytes) << params;
      EXPECT_NEAR(written, predicted.nvme_write_bytes, 0.25 * predicted.nvme_write_bytes);
      // Both directions share the pipe, as the machine was described.
      EXPECT_GE(1.05 * step.step_ms, read / 0.5e6 + written / 0.25e6) << params;
      EXPECT_NEAR(step.step_ms, 1e3 * predicted.step_s, 0.2 * 1e3 * predicted.step_s) << params;
      EXPECT_GT(step.update_exposed_ms, 0.3 * step.step_ms) << params;
      EXPECT_NEAR(step.forward_ms + step.backward_ms + step.update_exposed_ms, step.step_ms,
                  0.001 * step.step_ms)
          << params;
    }
  }
}

// The time that forward waited for updates is in no other time, whether the update overlaps or not.
TEST(SimulatedRun, CountsAnExposedUpdateOnce) {
  DescribedMachine slow = described();
  slow.ram_gb_per_s = 1;  // so is AdamW
  for (const char* overlap : {"true", "false"}) {
    const Simulated simulated =
        simulate(devices("cpu", "cpu") +
                     std::vector<std::string>{std::string("placement.overlap_update=") + overlap},
                 slow);
    for (const StepMetrics& step : simulated.steps) {
      ASSERT_GT(step.update_exposed_ms, 0.8 * step.step_ms) << overlap;
      EXPECT_LT(step.forward_ms, 0.2 * step.step_ms) << overlap;
      EXPECT_NEAR(step.forward_ms + step.backward_ms + step.update_exposed_ms, step.step_ms,
                  0.001 * step.step_ms)
          << overlap;
    }
  }
}

// Unit inputs that are written to the drive and read back in each of two waves, of which the
// second may be shorter: once each way.
TEST(SimulatedRun, SpillsInputsAtTheSpeedOfTheDrive) {
  DescribedMachine slow = described();
  slow.drive_read_gb_per_s = 0.5;
  slow.drive_write_gb_per_s = 0.5;
  for (const char* steps : {"6", "5"}) {
    const Simulated simulated =
        simulate(devices("cpu", "cpu") +
                     std::vector<std::string>{std::string("gradient_accumulation_steps=") + steps,
                                              "placement.wave_micro_batches=3",
                                              "placement.unit_inputs_to_nvme=on"},
                 slow);
    const offload::StepPrediction& predicted = simulated.plan.placement.prediction;
    ASSERT_GT(predicted.nvme_write_bytes, 0);
    EXPECT_EQ(predicted.nvme_read_bytes, predicted.nvme_write_bytes);
    for (const StepMetrics& step : simulated.steps) {
      const auto written = static_cast<double>(step.nvme_write_bytes);
      EXPECT_NEAR(written, predicted.nvme_write_bytes, 0.02 * predicted.nvme_write_bytes);
      EXPECT_EQ(step.nvme_read_bytes, step.nvme_write_bytes);
      EXPECT_GE(1.05 * step.step_ms, written / 0.5e6);
      EXPECT_NEAR(step.step_ms, 1e3 * predicted.step_s, 0.2 * 1e3 * predicted.step_s);
    }
  }
}

// Gradients leave for the drive and come back: for the update in one wave, for each addition in
// more.
TEST(SimulatedRun, MovesGradientsAtTheSpeedOfTheDrive) {
  DescribedMachine slow = described();
  slow.drive_read_gb_per_s = 0.5;
  slow.drive_write_gb_per_s = 0.5;
  for (const char* wave : {"6", "2"}) {
    const Simulated simulated =
        simulate(devices("nvme", "nvme") +
                     std::vector<std::string>{"gradient_accumulation_steps=6",
                                              std::string("placement.wave_micro_batches=") + wave,
                                              "placement.unit_inputs_to_nvme=on",
                                              "placement.gradients_to_nvme=on"},
                 slow);
    const offload::StepPrediction& predicted = simulated.plan.placement.prediction;
    ASSERT_GT(simulated.plan.input.step.gradient_buffers, 0);
    for (const StepMetrics& step : simulated.steps) {
      const auto written = static_cast<double>(step.nvme_write_bytes);
      EXPECT_NEAR(written, predicted.nvme_write_bytes, 0.1 * predicted.nvme_write_bytes) << wave;
      // The last records of state are still in buffers, and are not read again.
      EXPECT_NEAR(static_cast<double>(step.nvme_read_bytes), predicted.nvme_read_bytes,
                  0.25 * predicted.nvme_read_bytes)
          << wave;
      EXPECT_NEAR(step.step_ms, 1e3 * predicted.step_s, 0.2 * 1e3 * predicted.step_s) << wave;
    }
  }
}

// Effects that predict_step() leaves out.
TEST(SimulatedRun, FeelsTheRunsBlocksAndQueueDepth) {
  DescribedMachine machine = described();
  const Simulated deep = simulate(devices("cpu", "nvme"), machine);
  const Simulated shallow =
      simulate(devices("cpu", "nvme") +
                   std::vector<std::string>{"aio.queue_depth=1", "aio.block_size=16384"},
               machine);
  EXPECT_NEAR(shallow.plan.placement.prediction.step_s, deep.plan.placement.prediction.step_s,
              1e-9);
  EXPECT_GT(shallow.steps[2].step_ms, 1.5 * deep.steps[2].step_ms);
}

TEST(SimulatedRun, HasTheSameHistoryEachTime) {
  const auto times = [] {
    std::vector<double> all;
    for (const StepMetrics& step : simulate(devices("nvme", "nvme"), described()).steps)
      all.push_back(step.step_ms);
    return all;
  };
  EXPECT_EQ(times(), times());
}

TEST(SimulatedRun, WritesTheTraceOfARun) {
  const aio::TemporaryFolder folder;
  TraceLog trace;
  trace.start({.first_step = 1, .last_step = 3});
  const Simulated simulated = simulate(devices("cpu", "nvme"), described(), &trace);
  ASSERT_OK(trace.write_json(folder.file("trace.json")));
  EXPECT_EQ(trace.dropped_spans(), 0);
  std::ifstream file(folder.file("trace.json"));
  const auto json = nlohmann::json::parse(file);
  const double begin_us = json["otherData"]["window_us"][0];
  const double end_us = json["otherData"]["window_us"][1];
  double steps_us = 0;
  for (const StepMetrics& step : simulated.steps) steps_us += 1e3 * step.step_ms;
  EXPECT_NEAR(end_us - begin_us, steps_us, 1);
  std::map<std::string, int> spans;
  std::set<std::string> phases;
  double read_bytes = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans[event["cat"]];
    const std::string name = event["name"];
    const double from_us = event["ts"];
    const double to_us = from_us + event["dur"].get<double>();
    EXPECT_GE(to_us, begin_us);
    EXPECT_LE(from_us, end_us);
    const bool drive = event["cat"] == "NVMe read" || event["cat"] == "NVMe write";
    if (drive) {
      EXPECT_EQ(name, "optimizer state");
    } else {
      const std::string unit = event["args"]["unit"];
      EXPECT_TRUE(unit == "embedding" || unit == "head" || unit.starts_with("h.")) << unit;
      phases.insert(event["args"]["phase"].get<std::string>());
      EXPECT_EQ(name, event["args"]["phase"].get<std::string>() + " " + unit);
    }
    if (event["cat"] == "NVMe read") read_bytes += event["args"]["bytes"].get<double>();
  }
  for (const char* track : {"compute", "H2D", "D2H", "AdamW", "NVMe read", "NVMe write"})
    EXPECT_GT(spans[track], 0) << track;
  EXPECT_EQ(phases, (std::set<std::string>{"forward", "loss", "backward", "adamw", "parameters",
                                           "gradient"}));
  double moved_bytes = 0;
  for (const StepMetrics& step : simulated.steps)
    moved_bytes += static_cast<double>(step.nvme_read_bytes);
  EXPECT_NEAR(read_bytes, moved_bytes, 0.1 * moved_bytes);  // some extend beyond the ends
}

TEST(SimulatedRun, EndsInTheTableOfARunWithoutALoss) {
  RunTotals totals;
  for (const StepMetrics& step : simulate(devices("cpu", "nvme"), described()).steps)
    totals.add(step);
  const std::string table = totals.closing_table();
  for (const char* row : {"steps", "tokens/s", "forward", "backward", "update, exposed",
                          "NVMe read", "NVMe write", "host to device", "GPU"})
    EXPECT_NE(table.find(row), std::string::npos) << row;
  EXPECT_EQ(table.find("loss"), std::string::npos);
  EXPECT_EQ(table.find("nan"), std::string::npos);
}

// ---- the plan as JSON -------------------------------------------------------------------------

TEST(PlanJson, SaysWhatTheTextSays) {
  const Simulated simulated = simulate(devices("auto", "nvme"), described());
  const RunPlan& plan = simulated.plan;
  const config::Config config = planned_config({});
  const auto json = nlohmann::json::parse(plan_json(config, plan, {}, simulated.steps));
  EXPECT_TRUE(json["fits"]);
  EXPECT_EQ(json["parameters"], plan.parameters);
  EXPECT_EQ(json["tokens_per_step"], plan.tokens_per_step);
  EXPECT_EQ(json["tiers"]["gpu"]["bytes"], plan.memory.gpu_bytes());
  EXPECT_EQ(json["tiers"]["gpu"]["budget_bytes"], plan.input.budget.gpu);
  for (const auto& [tier, lines] :
       {std::pair{"gpu", plan.memory.gpu}, {"cpu", plan.memory.host}, {"nvme", plan.memory.nvme}}) {
    std::uint64_t sum = 0;
    for (const auto& [what, bytes] : json["tiers"][tier]["parts"].items())
      sum += bytes.get<std::uint64_t>();
    EXPECT_EQ(sum, json["tiers"][tier]["bytes"].get<std::uint64_t>()) << tier;
    for (const MemoryLine& line : lines)
      EXPECT_EQ(json["tiers"][tier]["parts"].contains(line.what), line.bytes > 0) << line.what;
  }
  ASSERT_EQ(json["units"].size(), plan.placement.places.size());
  std::uint64_t on_nvme = 0;
  for (const auto& unit : json["units"]) on_nvme += unit["nvme_elements"].get<std::uint64_t>();
  std::uint64_t elements = 0;
  for (const offload::UnitCost& unit : plan.input.units) elements += unit.elements;
  EXPECT_EQ(on_nvme, elements);
  EXPECT_EQ(json["units"][0]["activations"], "none");
  const auto& prediction = json["prediction"];
  EXPECT_EQ(prediction["step_s"], plan.placement.prediction.step_s);
  EXPECT_EQ(prediction["busy_s"].size(), offload::kResources);
  for (const char* key : {"tokens_per_s", "bottleneck", "forward_s", "update_exposed_s",
                          "nvme_read_bytes", "nvme_write_bytes", "nvme_write_bytes_per_day"})
    EXPECT_TRUE(prediction.contains(key)) << key;
  EXPECT_EQ(json["simulated_steps"].size(), 3);
  EXPECT_EQ(json["deepspeed_estimates"].size(), 2 + 6);
  EXPECT_TRUE(json["machine"].is_object());
  const std::string text = format_plan(config, plan, {});
  EXPECT_NE(text.find(prediction["bottleneck"].get<std::string>()), std::string::npos);
}

TEST(PlanJson, SaysWhyNothingFits) {
  const config::Config config = planned_config({});
  const RunPlan plan = planned(config, {.machine = described(1)});
  ASSERT_FALSE(plan.placement.fits);
  const auto json = nlohmann::json::parse(plan_json(config, plan, {}));
  EXPECT_FALSE(json["fits"]);
  EXPECT_EQ(json["reason"], does_not_fit(config, plan));
  EXPECT_FALSE(json.contains("prediction"));
}

}  // namespace
}  // namespace sluice::engine
