#include "engine/run/evaluation_run.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/run/run_checkpoints.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

const std::vector<std::string> kOnNvme = {"zero_optimization.offload_param.device=nvme",
                                          "zero_optimization.offload_optimizer.device=nvme",
                                          "zero_optimization.stage3_param_persistence_threshold=0",
                                          "zero_optimization.offload_param.buffer_count=3"};

// Without weights yet.
Result<std::unique_ptr<EvaluationRun>> made(const SmallRun& small, std::uint64_t together = 0) {
  const config::Config config = small.config();
  const bool on_gpu = uses_cuda(config);
  const ModelLayout model = configured_layout(config, on_gpu);
  auto plan = plan_memory(config, model, {.purpose = RunPurpose::kEvaluation, .on_gpu = on_gpu});
  if (!plan.ok()) return plan.error();
  if (together > 0) plan->activations.evaluation_micro_batches = together;
  return EvaluationRun::create(config, *plan);
}

Result<std::unique_ptr<EvaluationRun>> evaluation(const SmallRun& small,
                                                  std::uint64_t together = 0) {
  SLUICE_ASSIGN_OR_RETURN(auto run, made(small, together));
  SLUICE_RETURN_IF_ERROR(run->load({}));
  return run;
}

std::unique_ptr<EvaluationRun> started(const SmallRun& small, std::uint64_t together = 0) {
  auto run = evaluation(small, together);
  if (!run.ok()) throw std::runtime_error(run.error().message());
  return std::move(*run);
}

// A training run's weights, and the loss that the run itself computes for them.
struct Trained {
  explicit Trained(const std::vector<std::string>& overrides) : small(overrides) {
    const auto run = small.start();
    for (int i = 0; i < 3; ++i) run->step();
    loss = run->evaluate();
    const Status saved = run->save_weights(path(), DType::kF32);
    if (!saved.ok()) throw std::runtime_error(saved.error().message());
  }
  std::string path() const { return small.folder().file("model.safetensors"); }
  SmallRun small;
  double loss = 0;
};

void expect_the_runs_own_loss(std::vector<std::string> overrides) {
  overrides.insert(overrides.end(), {"data.validation_fraction=0.02"});
  const Trained trained(overrides);
  overrides.push_back("model.init_from=" + trained.path());
  EXPECT_EQ(started(SmallRun(overrides))->evaluate({}).mean(), trained.loss);
  overrides.insert(overrides.end(), kOnNvme.begin(), kOnNvme.end());
  EXPECT_EQ(started(SmallRun(overrides))->evaluate({}).mean(), trained.loss);
}

std::string saved_checkpoint(TrainingRun& training) {
  const auto checkpoints =
      RunCheckpoints::create(training, *training.drives().saves,
                             {.directory = training.config().run.dir, .background = false});
  EXPECT_OK(checkpoints);
  EXPECT_OK((*checkpoints)->save({}));
  return (*checkpoints)->finished().at(0).path;
}

Status load_checkpoint(const std::string& path, const SmallRun& of,
                       std::unique_ptr<EvaluationRun>& run) {
  SLUICE_ASSIGN_OR_RETURN(run, made(of));
  SLUICE_ASSIGN_OR_RETURN(const auto reader,
                          CheckpointReader::open(*run->drives().reads, path, {.moments = false}));
  return run->load(*reader, {});
}

class EvaluationIn : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> precision() const {
    if (GetParam() == std::string("fp32")) return {"bf16.enabled=false"};
    return {"bf16.enabled=false", GetParam() + std::string(".enabled=true")};
  }
};

TEST_P(EvaluationIn, GivesTheLossOfTheRunThatMadeTheWeights) {
  std::vector<std::string> overrides = precision();
  overrides.emplace_back("run.device=cpu");
  expect_the_runs_own_loss(overrides);
}

INSTANTIATE_TEST_SUITE_P(Precisions, EvaluationIn, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& precision) { return std::string(precision.param); });

// For adapters, whose base is read from elsewhere.
TEST_P(EvaluationIn, GivesTheLossOfACheckpointOfAdapters) {
  std::vector<std::string> overrides =
      of_adapters({"run.device=cpu", "data.validation_fraction=0.02"});
  for (const std::string& one : precision()) overrides.push_back(one);
  const SmallRun small(overrides);
  const auto training = small.start();
  for (int i = 0; i < 3; ++i) training->step();
  const double loss = training->evaluate();
  const std::string path = saved_checkpoint(*training);
  const auto load = [&](const SmallRun& of, std::unique_ptr<EvaluationRun>& run) {
    return load_checkpoint(path, of, run);
  };
  std::vector<std::string> elsewhere = overrides;
  elsewhere.insert(elsewhere.end(), kOnNvme.begin(), kOnNvme.end());
  const SmallRun on_nvme(elsewhere);
  std::unique_ptr<EvaluationRun> run;
  ASSERT_OK(load(small, run));
  EXPECT_EQ(run->evaluate({}).mean(), loss);
  ASSERT_OK(load(on_nvme, run));
  EXPECT_EQ(run->evaluate({}).mean(), loss);
  for (const auto& [changed, says] :
       std::map<std::string, std::string>{{"model.init_seed=9", "on other base weights than those"},
                                          {"recipe.lora.rank=2", "describe different adapters"},
                                          {"model.hidden=64", "describe different models"}}) {
    std::vector<std::string> other = overrides;
    other.push_back(changed);
    const Status loaded = load(SmallRun(other), run);
    ASSERT_FALSE(loaded.ok()) << changed;
    EXPECT_NE(loaded.error().message().find(says), std::string::npos) << loaded.error().message();
  }
}

// Evaluation leaves the balance loss out.
TEST(EvaluationRun, ReadsACheckpointOfARunWithAnotherBalanceLoss) {
  std::vector<std::string> overrides = of_experts({"data.validation_fraction=0.02"});
  const SmallRun small(overrides);
  const auto training = small.start();
  training->step();
  const std::string path = saved_checkpoint(*training);
  overrides.emplace_back("model.router_aux_loss_coef=0");
  std::unique_ptr<EvaluationRun> run;
  ASSERT_OK(load_checkpoint(path, SmallRun(overrides), run));
  EXPECT_EQ(run->evaluate({}).mean(), training->evaluate());
}

TEST(EvaluationCuda, GivesTheLossOfTheRunThatMadeTheWeights) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use";
  for (const char* on : {"bf16.enabled=true", "bf16.enabled=false"})
    expect_the_runs_own_loss({"run.device=cuda", on});
}

// All 399 windows, the last micro-batch smaller, in passes of 4 micro-batches or of all.
TEST(EvaluationRun, CountsEveryWindowOnceHoweverManyGoTogether) {
  const Trained trained({"model.dropout=0"});
  const auto evaluate = [&](const char* rows, std::uint64_t together) {
    const SmallRun small({"model.init_from=" + trained.path(), "run.eval_batches=1000000",
                          "data.validation_fraction=0.32",
                          std::string("train_micro_batch_size_per_gpu=") + rows});
    return started(small, together)->evaluate({});
  };
  const LossSum single = evaluate("1", 0);
  EXPECT_EQ(single.tokens, 399 * 16);
  const LossSum grouped = evaluate("5", 4);
  EXPECT_EQ(grouped.tokens, single.tokens);
  EXPECT_NEAR(grouped.mean(), single.mean(), 1e-3);  // bf16: rows do not mix, sums round
  EXPECT_EQ(evaluate("5", 0).mean(), grouped.mean());
}

TEST(EvaluationRun, MakesParametersAndNothingElse) {
  const SmallRun training(kOnNvme);
  const config::Config config = training.config();
  const bool on_gpu = uses_cuda(config);
  const ModelLayout model = configured_layout(config, on_gpu);
  const auto plan =
      plan_memory(config, model, {.purpose = RunPurpose::kEvaluation, .on_gpu = on_gpu});
  const auto whole = plan_memory(config, model, {.on_gpu = on_gpu});
  ASSERT_OK(plan);
  ASSERT_OK(whole);
  ASSERT_EQ(plan->nvme.size(), 1U);
  EXPECT_EQ(plan->nvme_bytes(), whole->nvme.front().bytes);
  for (const MemoryLine& line : plan->host) {
    EXPECT_EQ(line.what.find("optimizer"), std::string::npos);
    EXPECT_EQ(line.what.find("gradients"), std::string::npos);
  }

  const Trained trained({});
  std::vector<std::string> overrides = kOnNvme;
  overrides.push_back("model.init_from=" + trained.path());
  const SmallRun small(overrides);
  const auto run = started(small);
  std::uint64_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(small.folder().file("nvme"))) {
    ++folders;
    EXPECT_EQ(entry.path().filename().string().find("optimizer"), std::string::npos);
  }
  EXPECT_EQ(folders, 1U);
  EXPECT_LE(run->stats().bytes_written, plan->nvme_bytes());
}

TEST(EvaluationRun, LeavesNothingOnTheDriveAndNoRunsStateIsTouched) {
  std::vector<std::string> overrides = kOnNvme;
  const SmallRun small(overrides);
  const auto training = small.start();
  training->step();
  const std::string path = small.folder().file("model.safetensors");
  ASSERT_OK(training->save_weights(path, DType::kF32));
  // In the same run's directory and paths, while that run continues.
  overrides.insert(overrides.end(),
                   {"model.init_from=" + path, "run.dir=" + small.folder().file("run"),
                    "budget.nvme_paths=[\"" + small.folder().file("nvme") + "\"]"});
  const double expected = training->evaluate();
  {
    const SmallRun other(overrides);
    EXPECT_EQ(started(other)->evaluate({}).mean(), expected);
  }
  training->step();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(small.folder().file("nvme")), {}), 2);
}

TEST(EvaluationRun, SaysWhatIsMissing) {
  const Trained trained({});
  const auto no_data =
      evaluation(SmallRun({"model.init_from=" + trained.path(), "data.validation_fraction=0"}));
  ASSERT_FALSE(no_data.ok());
  EXPECT_NE(no_data.error().message().find("data.validation"), std::string::npos);
  const auto other_model =
      evaluation(SmallRun({"model.init_from=" + trained.path(), "model.layers=4"}));
  ASSERT_FALSE(other_model.ok());
  EXPECT_NE(other_model.error().message().find("h.3."), std::string::npos);
}

}  // namespace
}  // namespace sluice::engine
