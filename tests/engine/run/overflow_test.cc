// Steps whose gradients overflow, and runs whose numbers become invalid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>

#include "engine/exchange/stored_shape.h"
#include "engine/run/run_checkpoints.h"
#include "engine/runtime/weights_file.h"
#include "engine/weights/safetensors_writer.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kFp16 = {"bf16.enabled=false", "fp16.enabled=true",
                                        "fp16.hysteresis=1"};

std::vector<std::string> with(std::vector<std::string> base, const std::string& more) {
  base.push_back(more);
  return base;
}

TEST(Overflow, SkipsAndHalvesUntilTheScaleFitsThenLearns) {
  const SmallRun small(with(kFp16, "fp16.initial_scale_power=32"));
  const auto run = small.start();
  const std::vector<float> before = masters_of(*run);
  double scale = std::ldexp(1.0, 32);
  int skipped = 0;
  StepOutcome outcome = run->step();
  for (; outcome.skipped; outcome = run->step()) {
    EXPECT_EQ(outcome.loss_scale, scale);
    scale /= 2;
    ++skipped;
    EXPECT_EQ(masters_of(*run), before) << "a skipped step changed a weight";
    ASSERT_LT(skipped, 40);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(run->trainer().state().global_step, skipped + 1);
  EXPECT_EQ(run->trainer().state().applied_step, 1);
  const double first_loss = outcome.loss;
  for (int i = 0; i < 25; ++i) outcome = run->step();
  EXPECT_LT(outcome.loss, first_loss);
}

// Skipping depends only on the numbers. A run that starts at the right scale ends with the weights
// of a run that had to find it, if both have the same step counter and data position.
TEST(Overflow, CountsStepsButNotUpdates) {
  const SmallRun small(with(kFp16, "fp16.initial_scale_power=30"));
  const auto run = small.start();
  int skipped = 0;
  for (int i = 0; i < 20; ++i) skipped += run->step().skipped ? 1 : 0;
  ASSERT_GT(skipped, 0);
  EXPECT_EQ(run->trainer().state().global_step, 20);
  EXPECT_EQ(run->trainer().state().applied_step, 20 - skipped);
  EXPECT_EQ(run->trainer().state().samples_drawn, 20U * 4U);
}

TEST(Overflow, EndsWithTheUnitsNameWhenTheScaleReachesItsFloor) {
  std::vector<std::string> overrides = with(kFp16, "fp16.initial_scale_power=32");
  overrides.push_back("fp16.min_loss_scale=2147483648");
  const SmallRun small(overrides);
  const auto run = small.start();
  try {
    for (int i = 0; i < 10; ++i) run->step();
    FAIL() << "the run went on";
  } catch (const TrainError& error) {
    EXPECT_THAT(error.what(), HasSubstr("first unit"));
  }
}

TEST(Overflow, SkipsUpToTheLimitWithAFixedScaleAndThenEnds) {
  const SmallRun small(with(with(kFp16, "fp16.loss_scale=1e30"), "run.max_skipped_steps=2"));
  const auto run = small.start();
  const std::vector<float> before = masters_of(*run);
  for (int i = 1; i <= 2; ++i) {
    const StepOutcome outcome = run->step();
    EXPECT_TRUE(outcome.skipped);
    EXPECT_THAT(outcome.warning, HasSubstr(std::to_string(i) + " in a row, at most 2"));
    EXPECT_EQ(run->trainer().state().skipped_in_a_row, i);
  }
  try {
    run->step();
    FAIL() << "the run went on";
  } catch (const NonFiniteGradient& error) {
    EXPECT_THAT(error.what(), HasSubstr("The 2 steps"));
    EXPECT_THAT(error.what(), HasSubstr("fp16.loss_scale"));
  }
  EXPECT_EQ(masters_of(*run), before);
}

// A corpus with occasional occurrences of a token, and weights such that samples with the token
// have a loss that is not finite, and all others a finite one.
class Trapped {
 public:
  Trapped() : path_(folder_.file("weights.safetensors")) {
    const SmallRun plain({"bf16.enabled=false"});
    const auto run = plain.start();
    auto writer = SafetensorsWriter::create(*run->drives().writes, {.path = path_},
                                            parameter_specs(run->model(), DType::kF32));
    if (!writer.ok()) throw std::runtime_error(writer.error().message());
    const Status written =
        run->take_state([&](const ParameterSpec& parameter, const offload::ConstStateSlice& state) {
          std::vector<float> values(state.master().begin(), state.master().end());
          set_trap(parameter, state.first_element, values);
          return (*writer)->append(parameter.name, values);
        });
    if (!written.ok() || !(*writer)->finish().ok()) throw std::runtime_error("no weights");
  }

  SmallRun run(std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"model.dropout=0", "model.init_from=" + path_});
    return SmallRun(std::move(overrides));
  }
  static void set_traps(const SmallRun& small) {
    std::fstream file(small.folder().file("train.bin"),
                      std::ios::binary | std::ios::in | std::ios::out);
    for (std::uint64_t at = kEvery; at < 20'000; at += kEvery) {
      file.seekp(static_cast<std::streamoff>(at * sizeof kToken));
      file.write(reinterpret_cast<const char*>(&kToken), sizeof kToken);
    }
  }
  static bool holds_one(std::uint64_t first_token) {
    return (first_token + 15) / kEvery > (first_token == 0 ? 0 : (first_token - 1) / kEvery);
  }

 private:
  static constexpr std::uint16_t kToken = 63;  // not in the corpus otherwise
  static constexpr std::uint64_t kEvery = 500;

  // Dimension 0 is below zero for all tokens but one. The first block's first feature is a multiple
  // of it, which GELU makes exactly 0 or huge; times 1e30 that is 0 or infinite.
  static void set_trap(const ParameterSpec& parameter, std::uint64_t first,
                       std::vector<float>& values) {
    if (parameter.shape.size() != 2) return;
    const auto columns = static_cast<std::uint64_t>(parameter.shape[1]);
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const std::uint64_t row = (first + i) / columns;
      const std::uint64_t column = (first + i) % columns;
      if (parameter.name == "wte.weight" && column == 0) values[i] = row == kToken ? 3 : -3;
      if (parameter.name == "wpe.weight" && column == 0) values[i] = 0;
      if (parameter.name == "h.0.mlp.c_fc.weight" && column == 0) values[i] = row == 0 ? 1e11F : 0;
      if (parameter.name == "h.0.mlp.c_proj.weight" && row == 0) values[i] = 1e30F;
    }
  }

  const aio::TemporaryFolder folder_;
  const std::string path_;
};

const std::vector<std::string> kSkip = {"run.non_finite_step=skip", "run.max_skipped_steps=3"};

struct TrappedRun {
  std::vector<bool> skipped;
  std::vector<double> losses;  // only steps that were not skipped
  std::vector<float> masters;
};

void go_on(TrainingRun& run, int steps, TrappedRun& result) {
  for (int i = 0; i < steps; ++i) {
    const StepOutcome outcome = run.step();
    result.skipped.push_back(outcome.skipped);
    if (!outcome.skipped) result.losses.push_back(outcome.loss);
    EXPECT_EQ(outcome.skipped, !outcome.warning.empty());
  }
  result.masters = masters_of(run);
}

void expect_equal(const TrappedRun& expected, const TrappedRun& got) {
  EXPECT_EQ(expected.skipped, got.skipped);
  EXPECT_EQ(expected.losses, got.losses);
  EXPECT_EQ(expected.masters, got.masters);
}

constexpr int kTrappedSteps = 24;

TEST(NonFiniteStep, IsSkippedWithTheSameBitsWhereverTheStateLies) {
  const Trapped trapped;
  for (const char* const precision : {"bf16.enabled=true", "bf16.enabled=false"}) {
    const auto trained = [&](const std::vector<std::string>& more) {
      std::vector<std::string> overrides = with(kSkip, precision);
      overrides.insert(overrides.end(), more.begin(), more.end());
      const SmallRun small = trapped.run(overrides);
      Trapped::set_traps(small);
      TrappedRun result;
      go_on(*small.start(), kTrappedSteps, result);
      return result;
    };
    const TrappedRun in_memory = trained({});
    const auto skips = std::count(in_memory.skipped.begin(), in_memory.skipped.end(), true);
    EXPECT_GT(skips, 0);
    EXPECT_LT(skips, kTrappedSteps / 2);
    for (const float master : in_memory.masters) ASSERT_TRUE(std::isfinite(master));
    expect_equal(in_memory, trained({"placement.overlap_update=false"}));
    expect_equal(in_memory, trained({"zero_optimization.offload_optimizer.device=nvme",
                                     "zero_optimization.offload_param.device=nvme",
                                     "zero_optimization.stage3_param_persistence_threshold=0",
                                     "zero_optimization.sub_group_size=1000"}));
  }
}

TEST(NonFiniteStep, CountsOnBehindACheckpointAndNeverTakesItsBatchAgain) {
  const Trapped trapped;
  const SmallRun small = trapped.run(kSkip);
  Trapped::set_traps(small);
  TrappedRun straight;
  go_on(*small.start(), kTrappedSteps, straight);
  // Saved right after the first skipped step.
  const auto first = std::find(straight.skipped.begin(), straight.skipped.end(), true);
  ASSERT_NE(first, straight.skipped.end());
  const auto stop = static_cast<int>(first - straight.skipped.begin()) + 1;
  TrappedRun stopped;
  std::string path;
  {
    const auto run = small.start();
    go_on(*run, stop, stopped);
    auto checkpoints =
        RunCheckpoints::create(*run, *run->drives().saves, {.directory = run->config().run.dir});
    ASSERT_TRUE(checkpoints.ok());
    ASSERT_TRUE((*checkpoints)->save({}).ok());
    path = (*checkpoints)->finished().at(0).path;
  }
  const auto run = small.make();
  const auto reader = CheckpointReader::open(*run->drives().reads, path, {});
  ASSERT_TRUE(reader.ok()) << reader.error().message();
  ASSERT_TRUE(run->resume(**reader, {}).ok());
  EXPECT_EQ(run->trainer().state().skipped_in_a_row, 1);
  EXPECT_EQ(run->trainer().state().samples_drawn, static_cast<std::uint64_t>(stop) * 4);
  go_on(*run, kTrappedSteps - stop, stopped);
  expect_equal(straight, stopped);
}

TEST(NonFiniteStep, StopsTheRunAndNamesTheData) {
  const Trapped trapped;
  const SmallRun small = trapped.run({});
  Trapped::set_traps(small);
  const auto run = small.start();
  std::string said;
  std::vector<float> before;
  try {
    for (int i = 0; i < kTrappedSteps; ++i) {
      before = masters_of(*run);
      run->step();
    }
    FAIL() << "no sample held a trap";
  } catch (const NonFiniteGradient& error) {
    said = error.what();
  }
  EXPECT_EQ(masters_of(*run), before);
  EXPECT_EQ(run->trainer().state().skipped_in_a_row, 0);
  EXPECT_THAT(said, HasSubstr("run.non_finite_step=skip"));
  EXPECT_THAT(said, HasSubstr("stops again"));
  std::smatch named;
  ASSERT_TRUE(std::regex_search(
      said, named,
      std::regex("micro-batch [12] of 2, loss -?nan, (\\S+/train\\.bin) from tokens (\\d+), "
                 "(\\d+), 17 tokens each")))
      << said;
  EXPECT_EQ(named[1], small.folder().file("train.bin"));
  EXPECT_TRUE(Trapped::holds_one(std::stoull(named[2])) ||
              Trapped::holds_one(std::stoull(named[3])))
      << said;
}

TEST(Overflow, EndsARunInBf16ThatDiverges) {
  const SmallRun small({"optimizer.params.lr=1e30", "scheduler.type=null", "gradient_clipping=0"});
  std::unique_ptr<TrainingRun> run;
  try {
    run = small.start();
    for (int i = 0; i < 10; ++i) run->step();
    FAIL() << "the run went on";
  } catch (const TrainError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not finite, in unit"));
  } catch (const std::runtime_error& error) {
    FAIL() << error.what();
  }
}

}  // namespace
}  // namespace sluice::engine
