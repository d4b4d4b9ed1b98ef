// A family outside the program trains, plans, checkpoints, resumes and is exchanged, with only two
// rows outside its folder.
#include "tests/engine/toy_family/toy_family.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/model_workload.h"
#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/exchange/export_model.h"
#include "engine/exchange/import_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "engine/plan/run_plan.h"
#include "engine/probe/unit_timer.h"
#include "engine/run/evaluation_run.h"
#include "engine/run/generation_run.h"
#include "engine/run/run_checkpoints.h"
#include "tests/engine/families/data_families.h"
#include "tests/engine/model/whole_model.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

// Before main(), and so before the first configuration uses keys.
const bool kAdded = [] {
  add_toy_family();
  add_data_families();
  return true;
}();

std::vector<std::string> toy(const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"model.preset=toy-small", "model.layers=4"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

const std::vector<std::string> kOnNvme = {"zero_optimization.offload_optimizer.device=nvme",
                                          "zero_optimization.offload_param.device=nvme",
                                          "zero_optimization.stage3_param_persistence_threshold=0",
                                          "zero_optimization.offload_param.buffer_count=3"};

ModelShape tiny() {
  ModelShape shape = *preset_shape("toy-small");
  shape.hidden = 12;
  shape.ffn_hidden = 20;
  shape.vocab = 31;
  return shape;
}

// Along one random direction of each parameter, in float64: independent of how backward is written.
TEST(ToyFamily, GradientsMatchFiniteDifferences) {
  ASSERT_TRUE(kAdded);
  for (const bool recompute : {false, true}) {
    const WholeModel model({.shape = tiny()}, at::TensorOptions().dtype(at::kDouble));
    model.initialise(1);
    at::manual_seed(5);
    model.for_each_parameter(
        [](const ParameterSpec& spec, const at::Tensor& parameter, const at::Tensor&) {
          parameter.add_(at::randn(spec.shape, parameter.options()), 0.3);
        });
    const at::Tensor tokens = at::randint(31, {2, 7}, at::kLong);
    const at::Tensor targets = at::randint(31, {2, 7}, at::kLong);
    model.forward_backward({}, tokens, targets, 1, recompute);
    constexpr double kStep = 1e-5;
    model.for_each_parameter(
        [&](const ParameterSpec& spec, const at::Tensor& parameter, const at::Tensor& gradient) {
          const at::Tensor direction = at::randn(spec.shape, parameter.options());
          const auto loss_at = [&](double distance) {
            const at::Tensor before = parameter.clone();
            parameter.add_(direction, distance);
            const double loss = model.loss_sum({}, tokens, targets).item<double>();
            parameter.copy_(before);
            return loss;
          };
          const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
          const double expected = gradient.mul(direction).sum().item<double>();
          EXPECT_NEAR(difference, expected, 1e-6 * std::max(1.0, std::abs(expected))) << spec.name;
          EXPECT_GT(gradient.abs().max().item<double>(), 0) << spec.name;
        });
  }
}

TEST(ToyFamily, IsRefusedWithItsNameWhereAProgramHasNoUnitsOfAFamily) {
  try {
    make_model({.shape = *preset_shape("ante-small")});
    FAIL() << "a model without units";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("ante has a row"));
  }
}

TEST(ToyFamily, HasTwoKindsOfBlocksAndAHeadThatBorrowsNothing) {
  const ModelLayout model = model_layout({.shape = tiny()});
  EXPECT_EQ(model.first_of_kinds(), (std::vector<int>{0, 1, 2, 5}));
  EXPECT_NE(&model.kind(1), &model.kind(2));
  EXPECT_EQ(&model.kind(1), &model.kind(3));
  EXPECT_TRUE(model.borrowed(model.head()).empty());
  EXPECT_FALSE(model.has_borrowers(0));
  EXPECT_EQ(model.kv_cache_bytes(16, 2), 2U * 2 * 16 * 12 * 2);  // for two blocks
}

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
};

Trained train(TrainingRun& run, int steps) {
  Trained trained;
  for (int i = 0; i < steps; ++i) trained.losses.push_back(run.step().loss);
  trained.masters = masters_of(run);
  return trained;
}

void expect_equal(const Trained& expected, const Trained& got) {
  ASSERT_EQ(expected.masters.size(), got.masters.size());
  EXPECT_EQ(0, std::memcmp(expected.masters.data(), got.masters.data(),
                           expected.masters.size() * sizeof(float)));
  EXPECT_EQ(expected.losses, got.losses);
}

TEST(ToyFamily, LearnsWithTheSameBitsOverEveryPlacement) {
  constexpr int kSteps = 30;
  for (const char* const precision : {"bf16", "fp32"}) {
    SCOPED_TRACE(precision);
    const std::string enabled =
        std::string("bf16.enabled=") + (precision == std::string("bf16") ? "true" : "false");
    const auto of = [&](std::vector<std::string> more) {
      more.push_back(enabled);
      return train(*SmallRun(toy(more)).start(), kSteps);
    };
    const Trained first = of({});
    EXPECT_LT(first.losses.back(), first.losses.front() - 0.5);
    expect_equal(first, of(kOnNvme));
    expect_equal(first, of({"placement.overlap_update=false"}));
    expect_equal(first, of({"placement.recompute=off", "zero_optimization.sub_group_size=700"}));
  }
}

TEST(ToyFamily, ResumesFromACheckpointWithTheBitsOfARunThatWasNotStopped) {
  constexpr int kStop = 5;
  constexpr int kSteps = 9;
  const SmallRun small(toy());
  const auto whole = small.start();
  train(*whole, kStop);
  const Trained expected = train(*whole, kSteps - kStop);

  const auto stopped = small.start();
  train(*stopped, kStop);
  auto checkpoints = RunCheckpoints::create(*stopped, *stopped->drives().saves,
                                            {.directory = stopped->config().run.dir});
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_TRUE((*checkpoints)->save({}).ok());
  (*checkpoints)->wait();
  const auto saved = (*checkpoints)->finished();
  ASSERT_EQ(saved.size(), 1U);
  ASSERT_OK(saved[0].status);

  const SmallRun elsewhere(toy(kOnNvme));
  std::filesystem::copy(small.folder().file("train.bin"), elsewhere.folder().file("train.bin"),
                        std::filesystem::copy_options::overwrite_existing);
  const auto resumed = elsewhere.make();
  auto reader = CheckpointReader::open(*resumed->drives().reads, saved[0].path, {});
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->state().run.family, "toy");
  EXPECT_EQ((*reader)->state().run.family_numbers.at("toy_epsilon"), 1e-5);
  ASSERT_OK(resumed->resume(**reader, {}));
  expect_equal(expected, train(*resumed, kSteps - kStop));

  // A GPT-2 with these numbers must be refused.
  const auto other = SmallRun({"model.layers=4", "model.dropout=0"}).make();
  const Status refused = other->resume(**reader, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("the model's family is"));
  const auto epsilon = SmallRun(toy({"model.toy_epsilon=0.01"})).make();
  const Status different = epsilon->resume(**reader, {});
  ASSERT_FALSE(different.ok());
  EXPECT_THAT(different.error().message(), HasSubstr("toy_epsilon"));
}

TEST(ToyFamily, GoesToAFolderAndBackAndIsEvaluatedAndContinued) {
  const SmallRun small(toy());
  const auto run = small.start();
  train(*run, 3);
  const double loss = run->evaluate();
  auto checkpoints =
      RunCheckpoints::create(*run, *run->drives().saves, {.directory = run->config().run.dir});
  ASSERT_TRUE(checkpoints.ok());
  ASSERT_TRUE((*checkpoints)->save({}).ok());
  (*checkpoints)->wait();
  const auto saved = (*checkpoints)->finished();
  ASSERT_EQ(saved.size(), 1U);
  aio::IoQueue& queue = *run->drives().reads;
  auto reader = CheckpointReader::open(queue, saved[0].path, {});
  ASSERT_OK(reader);
  const std::string folder = small.folder().file("exported");
  ASSERT_OK(export_model(queue, **reader, {.folder = folder, .tokenizer = {}}));
  const auto imported = import_model(
      queue, {.from = folder, .directory = small.folder().file("imported"), .progress = {}});
  ASSERT_OK(imported);
  auto back = CheckpointReader::open(queue, imported->checkpoint, {});
  ASSERT_OK(back);
  const auto shape = stored_shape((*back)->state().run);
  ASSERT_OK(shape);
  EXPECT_EQ(shape->family, "toy");
  EXPECT_EQ(shape->numbers, (std::map<std::string, double>{{"toy_epsilon", 1e-5}}));

  const SmallRun evaluated(toy(
      {"model.init_from=" + folder, "data.train=[\"" + small.folder().file("train.bin") + "\"]"}));
  const config::Config config = evaluated.config();
  const bool on_gpu = uses_cuda(config);
  const ModelLayout model = configured_layout(config, on_gpu);
  for (const RunPurpose purpose : {RunPurpose::kEvaluation, RunPurpose::kGeneration}) {
    const auto plan = plan_memory(config, model, {.purpose = purpose, .on_gpu = on_gpu});
    ASSERT_OK(plan);
    if (purpose == RunPurpose::kEvaluation) {
      auto evaluation = EvaluationRun::create(config, *plan);
      ASSERT_OK(evaluation);
      ASSERT_OK((*evaluation)->load({}));
      EXPECT_EQ((*evaluation)->evaluate({}).mean(), loss);
      continue;
    }
    auto generation = GenerationRun::create(config, *plan);
    ASSERT_OK(generation);
    ASSERT_OK((*generation)->load(**reader, {}));
    // Token by token gives the same as all at once, except for rounding.
    const std::vector<std::int64_t> text = {1, 8, 43, 40};
    const std::vector<float> together = (*generation)->feed(text);
    auto again = GenerationRun::create(config, *plan);
    ASSERT_OK(again);
    ASSERT_OK((*again)->load(**reader, {}));
    std::vector<float> one_by_one;
    for (const std::int64_t token : text) one_by_one = (*again)->feed(std::vector{token});
    ASSERT_EQ(together.size(), 64U);
    for (std::size_t i = 0; i < together.size(); ++i)
      EXPECT_NEAR(together[i], one_by_one[i], 2e-2) << i;
  }
}

TEST(ToyFamily, IsPlannedAndTimed) {
  const auto made = make_model({.shape = *preset_shape("toy-small")});
  const auto times = time_units(
      *made,
      {.type = offload::ElementType::kFp32, .micro_batch = 2, .tokens = 16, .seconds = 0.01});
  ASSERT_OK(times);
  ASSERT_EQ(times->kinds.size(), 4U);
  EXPECT_GT(times->of("attention block").backward_s, 0);
  EXPECT_GT(times->of("feed-forward block").backward_s, 0);

  const SmallConfig small(toy({"model.layers=6", "zero_optimization.offload_param.device=auto",
                               "zero_optimization.offload_optimizer.device=auto"}));
  const auto plan = plan_run(small.config(), {.machine = {.gpu_gib = 24,
                                                          .cpu_gib = 64,
                                                          .nvme_gib = 100,
                                                          .bus_gb_per_s = 22,
                                                          .tflops = 100,
                                                          .gpu_memory_gb_per_s = 800,
                                                          .ram_gb_per_s = 80,
                                                          .drive_read_gb_per_s = 6,
                                                          .drive_write_gb_per_s = 4},
                                              .on_progress = {}});
  ASSERT_OK(plan);
  EXPECT_TRUE(plan->placement.fits);
  EXPECT_EQ(plan->input.units.size(), 8U);
  EXPECT_NE(plan->input.units[1].kept_bytes, plan->input.units[2].kept_bytes);
  EXPECT_TRUE(plan->input.units[7].lenders.empty());
}

TEST(ToyFamily, IsTimedByModelBenchWithItsOwnKindsAndCosts) {
  bench::ModelBenchOptions options;
  options.shape = *preset_shape("toy-small");
  options.pass = {.micro_batch = 2, .tokens = 16, .number_bytes = 4};
  options.dtype = bench::ActivationType::kFp32;
  options.dtype_name = "fp32";
  options.runs = 1;
  options.threads = 1;
  const bench::ModelReport report{options, bench::measure_passes(options)};
  const ModelLayout model = model_layout({.shape = options.shape});
  std::map<std::string, double> flops;
  for (const bench::PassMeasurement& it : report.passes) flops[it.name] = it.flops;
  for (const int unit : {1, 2}) {
    const UnitKind& kind = model.kind(unit);
    EXPECT_EQ(flops.at(kind.name() + " forward"), 2 * 16 * kind.flops(16).forward) << kind.name();
  }
  EXPECT_EQ(flops.at("head loss"), 2 * 16 * model.kind(model.head()).flops(16).forward);
  EXPECT_FALSE(flops.contains("block forward"));
  EXPECT_THAT(report.table(), HasSubstr("feed-forward block backward"));
  EXPECT_THAT(report.table(), HasSubstr("model, recomputed"));
}

TEST(ToyFamily, HasItsKeysAndNoOther) {
  // The preset's values, without overrides.
  EXPECT_EQ(SmallConfig(toy()).config().model.dropout, 0);
  EXPECT_EQ(SmallConfig(toy()).config().model.shape().ffn(), 64);
  const config::Config config = SmallConfig(toy({"model.toy_epsilon=0.25"})).config();
  EXPECT_EQ(config.model.family, "toy");
  EXPECT_EQ(config.model.shape().numbers.at("toy_epsilon"), 0.25);
  EXPECT_THAT(config::to_json(config), HasSubstr("toy_epsilon"));
  EXPECT_THAT(
      config::to_json(SmallConfig(toy({"model.preset=custom", "model.family=toy", "model.hidden=32",
                                       "model.heads=2", "model.context=16", "model.vocab=64"}))
                          .config()),
      HasSubstr(R"("family": "toy")"));
  EXPECT_THAT(config::to_json(SmallConfig().config()), testing::Not(HasSubstr("toy_epsilon")));
  const auto refusal = [](const std::vector<std::string>& overrides) -> std::string {
    try {
      SmallConfig(overrides).config();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "accepted";
  };
  // With all sizes given, a key of one family names it.
  EXPECT_EQ(SmallConfig({"model.toy_epsilon=0.25"}).config().model.family, "toy");
  EXPECT_THAT(refusal({"model.family=gpt2", "model.toy_epsilon=0.25"}), HasSubstr("family toy"));
  EXPECT_THAT(refusal(toy({"model.toy_epsilon=2"})), HasSubstr("at most 1"));
  EXPECT_THAT(refusal(toy({"model.family=gpt2"})), HasSubstr("family toy"));
  EXPECT_THAT(refusal({"model.family=lama"}), HasSubstr("model.family must be"));
  EXPECT_THAT(refusal(toy({"model.dropout=0.5"})), HasSubstr("no dropout"));
}

}  // namespace
}  // namespace sluice::engine
