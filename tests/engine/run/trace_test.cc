// The trace beside the metrics: what the tracks say was moved is what the run counted.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
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

// What is read ahead when the last step is over ends by itself, some milliseconds later.
void settle(TrainingRun& run) {
  run.trainer().drain();
  std::uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t now = run.traffic().nvme_read_bytes;
    if (i > 0 && now == before) return;
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// All of the run's steps, and what it moved in them.
TrainingRun::Traffic run_traced(TrainingRun& run) {
  settle(run);
  const TrainingRun::Traffic before = run.traffic();
  run.trace().start({.first_step = 1, .last_step = kSteps});
  for (int step = 1; step <= kSteps; ++step) {
    run.trace().begin_step(step, SteadyClock().now_ns());
    run.step();
  }
  settle(run);
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
      "model.layers=5"};  // more than fit into the cache
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
  const std::set<std::string> units = {"embedding", "h.0", "h.1", "h.2", "h.3", "h.4", "head"};
  EXPECT_EQ(traced.names("compute"), units);
  EXPECT_EQ(traced.names("AdamW"), units);
  EXPECT_EQ(traced.bytes("H2D"), moved.h2d_bytes);
  EXPECT_EQ(traced.bytes("D2H"), moved.d2h_bytes);
}

TEST(TraceCuda, ShowsCopiesThatRunWhileComputeGoesOn) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device in this machine";
  // Blocks that are heavy enough for a copy to be seen beside them.
  const SmallRun small({"model.layers=8", "model.hidden=512", "model.heads=8", "model.context=256",
                        "placement.boundaries_to_cpu=on"});
  const auto run = small.start();
  const TrainingRun::Traffic moved = run_traced(*run);
  const Traced traced(*run, small.folder().file("trace.json"));
  EXPECT_GT(moved.h2d_bytes, 0U);
  EXPECT_EQ(traced.bytes("H2D"), moved.h2d_bytes);
  EXPECT_EQ(traced.bytes("D2H"), moved.d2h_bytes);
  EXPECT_TRUE(traced.names("D2H").contains("h.0 input"));
  EXPECT_TRUE(traced.names("H2D").contains("h.0 input"));
  EXPECT_EQ(traced.of("compute").size(), std::size_t{kSteps} * (2 * 9 + 1));
  int overlapping = 0;
  for (const Span& copy : traced.of("H2D")) {
    for (const Span& unit : traced.of("compute"))
      overlapping += copy.begin_us < unit.end_us && unit.begin_us < copy.end_us ? 1 : 0;
  }
  EXPECT_GT(overlapping, 0);
}

}  // namespace
}  // namespace sluice::engine
