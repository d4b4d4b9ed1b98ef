// The trace compared with the metrics: the tracks move as many bytes as the run counted.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr int kSteps = 3;

struct Span {
  std::string track;
  std::string name;
  double begin_us = 0;
  double end_us = 0;
  std::uint64_t bytes = 0;
};

class Traced {
 public:
  Traced(TrainingRun& run, const std::string& path) {
    EXPECT_OK(run.trace().write_json(path));
    std::ifstream file(path);
    const auto json = nlohmann::json::parse(file);
    EXPECT_EQ(json.at("otherData").at("dropped_spans"), 0);
    for (const auto& event : json.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      const double begin_us = event.at("ts");
      const double took_us = event.at("dur");
      EXPECT_GE(took_us, 0);
      spans_.push_back({.track = event.at("cat"),
                        .name = event.at("name"),
                        .begin_us = begin_us,
                        .end_us = begin_us + took_us,
                        .bytes = event.at("args").value("bytes", std::uint64_t{0})});
    }
  }

  std::vector<Span> of(const std::string& track) const {
    std::vector<Span> found;
    for (const Span& span : spans_)
      if (span.track == track) found.push_back(span);
    return found;
  }
  std::uint64_t bytes(const std::string& track) const {
    std::uint64_t sum = 0;
    for (const Span& span : of(track)) sum += span.bytes;
    return sum;
  }
  std::set<std::string> names(const std::string& track) const {
    std::set<std::string> names;
    for (const Span& span : of(track)) names.insert(span.name);
    return names;
  }

 private:
  std::vector<Span> spans_;
};

// Reads ahead at the end of the last step complete some milliseconds later.
void wait_until_quiet(TrainingRun& run) {
  run.trainer().drain();
  std::uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t now = run.traffic().nvme_read_bytes;
    if (i > 0 && now == before) return;
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// All of the run's steps, and their traffic.
TrainingRun::Traffic run_traced(TrainingRun& run) {
  wait_until_quiet(run);
  const TrainingRun::Traffic before = run.traffic();
  run.trace().start({.first_step = 1, .last_step = kSteps});
  for (int step = 1; step <= kSteps; ++step) {
    run.trace().begin_step(step, SteadyClock().now_ns());
    run.step();
  }
  wait_until_quiet(run);
  run.trace().end_steps(SteadyClock().now_ns());
  const TrainingRun::Traffic after = run.traffic();
  return {.nvme_read_bytes = after.nvme_read_bytes - before.nvme_read_bytes,
          .nvme_write_bytes = after.nvme_write_bytes - before.nvme_write_bytes,
          .h2d_bytes = after.h2d_bytes - before.h2d_bytes,
          .d2h_bytes = after.d2h_bytes - before.d2h_bytes};
}

const std::vector<std::string>& all_on_nvme() {
  static const std::vector<std::string> overrides = {
      "zero_optimization.offload_optimizer.device=nvme",
      "zero_optimization.offload_param.device=nvme",
      "zero_optimization.stage3_param_persistence_threshold=0",
      "zero_optimization.offload_param.buffer_count=3",
      "model.layers=5"};  // more than the cache holds
  return overrides;
}

TEST(Trace, ShowsEveryByteThatTheMetricsCount) {
  const SmallRun small(all_on_nvme());
  const auto run = small.start();
  const TrainingRun::Traffic moved = run_traced(*run);
  const Traced traced(*run, small.folder().file("trace.json"));
  EXPECT_GT(moved.nvme_read_bytes, 0U);
  EXPECT_EQ(traced.bytes("NVMe read"), moved.nvme_read_bytes);
  EXPECT_EQ(traced.bytes("NVMe write"), moved.nvme_write_bytes);
  const std::set<std::string> both = {"optimizer state", "parameters"};
  EXPECT_EQ(traced.names("NVMe read"), both);
  EXPECT_EQ(traced.names("NVMe write"), both);
  const std::vector<std::string> blocks = {"h.0", "h.1", "h.2", "h.3", "h.4"};
  std::set<std::string> computed = {"forward embedding", "loss head", "backward embedding",
                                    "gradient embedding", "gradient head"};
  std::set<std::string> updated = {"adamw embedding", "adamw head"};
  for (const std::string& block : blocks) {
    for (const char* phase : {"forward ", "recompute ", "backward ", "gradient "})
      computed.insert(phase + block);
    updated.insert("adamw " + block);
  }
  EXPECT_EQ(traced.names("compute"), computed);
  EXPECT_EQ(traced.names("AdamW"), updated);
  EXPECT_EQ(traced.names("run"), std::set<std::string>{"step"});
  EXPECT_EQ(traced.of("run").size(), std::size_t{kSteps});
  EXPECT_EQ(traced.bytes("H2D"), moved.h2d_bytes);
  EXPECT_EQ(traced.bytes("D2H"), moved.d2h_bytes);
}

TEST(TraceCuda, ShowsCopiesThatRunWhileComputeGoesOn) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device in this machine";
  // Blocks so heavy that copies overlap with them visibly.
  const SmallRun small({"model.layers=8", "model.hidden=512", "model.heads=8", "model.context=256",
                        "placement.unit_inputs_to_cpu=on"});
  const auto run = small.start();
  const TrainingRun::Traffic moved = run_traced(*run);
  const Traced traced(*run, small.folder().file("trace.json"));
  EXPECT_GT(moved.h2d_bytes, 0U);
  EXPECT_EQ(traced.bytes("H2D"), moved.h2d_bytes);
  EXPECT_EQ(traced.bytes("D2H"), moved.d2h_bytes);
  EXPECT_TRUE(traced.names("D2H").contains("unit input h.0"));
  EXPECT_TRUE(traced.names("H2D").contains("unit input h.0"));
  const auto spans = traced.of("compute");
  const auto micro_batches = static_cast<std::ptrdiff_t>(run->config().batch.accumulation);
  for (const char* name : {"forward h.7", "backward h.7", "loss head"}) {
    EXPECT_EQ(std::count_if(spans.begin(), spans.end(),
                            [&](const Span& span) { return span.name == name; }),
              kSteps * micro_batches)
        << name;
  }
  int overlapping = 0;
  for (const Span& copy : traced.of("H2D")) {
    for (const Span& unit : traced.of("compute"))
      overlapping += copy.begin_us < unit.end_us && unit.begin_us < copy.end_us ? 1 : 0;
  }
  EXPECT_GT(overlapping, 0);
}

// The steps since phases were requested: every phase of every unit and micro-batch, in the order of
// computation, and in total no longer than the step.
TEST(Phases, AreThoseOfEveryUnitAndMicroBatch) {
  for (const std::string wave : {"0", "2"}) {
    const SmallRun small({"gradient_accumulation_steps=4", "placement.wave_micro_batches=" + wave,
                          "model.layers=3"});
    const auto run = small.start();
    run->step();
    EXPECT_TRUE(run->trainer().pass_spans().empty());
    run->trainer().measure_phases(true);
    const StepOutcome outcome = run->step();
    ASSERT_TRUE(outcome.times.passes.has_value());
    const std::vector<PassSpan>& spans = run->trainer().pass_spans();
    std::map<std::pair<PassPhase, int>, std::vector<std::int64_t>> micro_batches;
    std::array<std::int64_t, kPassPhases> sums{};
    std::int64_t end_ns = 0;
    for (const PassSpan& span : spans) {
      EXPECT_LE(end_ns, span.begin_ns);
      EXPECT_LE(span.begin_ns, span.end_ns);
      end_ns = span.end_ns;
      sums[static_cast<std::size_t>(span.phase)] += span.end_ns - span.begin_ns;
      if (span.micro_batch < 0) continue;
      micro_batches[{span.phase, span.unit}].push_back(span.micro_batch);
      EXPECT_EQ(span.wave, wave == "2" ? span.micro_batch / 2 : 0);
    }
    const std::vector<std::int64_t> all = {0, 1, 2, 3};
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_EQ((micro_batches[{PassPhase::kForward, unit}]), all) << unit;
      EXPECT_EQ((micro_batches[{PassPhase::kBackward, unit}]), all) << unit;
    }
    for (int unit = 1; unit < 4; ++unit)
      EXPECT_EQ((micro_batches[{PassPhase::kRecompute, unit}]), all) << unit;
    EXPECT_EQ((micro_batches[{PassPhase::kLoss, 4}]), all);
    EXPECT_EQ(*outcome.times.passes, sums);
    EXPECT_LE(
        sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6],
        outcome.times.forward_ns + outcome.times.backward_ns + outcome.times.update_exposed_ns);
    run->trainer().measure_phases(false);
    EXPECT_FALSE(run->step().times.passes.has_value());
  }
}

}  // namespace
}  // namespace sluice::engine
