// Stopping and resuming changes no bit, wherever the state was stored before and is stored after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>

#include "aio/log.h"
#include "engine/exchange/import_model.h"
#include "engine/families/families.h"
#include "tests/engine/run/resume_under_test.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

const std::vector<std::string> kOnNvme = {"zero_optimization.offload_optimizer.device=nvme",
                                          "zero_optimization.offload_param.device=nvme",
                                          "zero_optimization.stage3_param_persistence_threshold=0",
                                          "zero_optimization.offload_param.buffer_count=3",
                                          "zero_optimization.sub_group_size=1000"};

struct Case {
  const char* name;
  std::vector<std::string> both;    // before and after
  std::vector<std::string> before;  // only before the stop
  std::vector<std::string> after;   // only after the resume
  bool background = false;

  // NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
  friend void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }
};

const std::vector<std::string> kBf16 = {"bf16.enabled=true"};
const std::vector<std::string> kFp32 = {"bf16.enabled=false"};
// A scale that is too high at first, so that both halves skip steps.
const std::vector<std::string> kFp16 = {"bf16.enabled=false", "fp16.enabled=true",
                                        "fp16.initial_scale_power=32", "fp16.loss_scale_window=3",
                                        "fp16.hysteresis=1"};

const std::vector<std::string> kBf16Moments = {"bf16.enabled=true",
                                               "optimizer.params.moments=bf16"};
const std::vector<std::string> kFp16OfBf16Moments = {
    "bf16.enabled=false",       "fp16.enabled=true", "fp16.initial_scale_power=32",
    "fp16.loss_scale_window=3", "fp16.hysteresis=1", "optimizer.params.moments=bf16"};

const std::vector<std::string> kLlama = of_llama(kBf16);
const std::vector<std::string> kOtherGpt2 = {
    "bf16.enabled=true",     "model.activation=relu",       "model.norm_epsilon=1e-3",
    "model.tied_head=false", "model.scale_attention=false", "model.scale_attention_by_layer=true"};
const std::vector<std::string> kExperts = of_experts(kBf16);
const std::vector<std::string> kAdapters = of_adapters(kBf16);

class Resume : public testing::TestWithParam<Case> {};

TEST_P(Resume, HasTheBitsOfARunThatNeverStopped) {
  const Case& test = GetParam();
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = test.both;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Trained straight;
  train(*SmallRun(test.both).start(), kSteps, straight);

  Trained stopped;
  const SmallRun first(with(test.before));
  std::string path;
  {
    const auto run = first.start();
    for (int i = 0; i < kStop; ++i) stopped.losses.push_back(run->step().loss);
    path = save(*run, test.background);
    run->step();  // the checkpoint must not contain later changes
  }
  const SmallRun second(with(test.after));
  const auto run = second.make();
  const Status resumed = resume(*run, path);
  ASSERT_TRUE(resumed.ok()) << resumed.error().message();
  EXPECT_EQ(run->trainer().state().global_step, kStop);
  train(*run, kSteps - kStop, stopped);
  expect_equal(straight, stopped);
}

INSTANTIATE_TEST_SUITE_P(
    All, Resume,
    testing::Values(
        Case{"bf16", kBf16, {}, {}}, Case{"fp32", kFp32, {}, {}}, Case{"fp16", kFp16, {}, {}},
        Case{"bf16_in_background", kBf16, {}, {}, true},
        Case{"fp16_in_background_from_nvme", kFp16, kOnNvme, {}, true},
        Case{"bf16_cpu_to_nvme", kBf16, {}, kOnNvme},
        Case{"bf16_nvme_to_cpu", kBf16, kOnNvme, {"placement.overlap_update=false"}},
        Case{"bf16_in_groups_cpu_to_nvme", kInGroups, {}, kOnNvme},
        Case{"fp32_nvme_to_cpu", kFp32, kOnNvme, {"placement.recompute=off"}},
        Case{"fp16_cpu_to_nvme", kFp16, {"zero_optimization.sub_group_size=777"}, kOnNvme},
        Case{"other_gpt2_cpu_to_nvme", kOtherGpt2, {}, kOnNvme, true},
        Case{"other_gpt2_nvme_to_cpu", kOtherGpt2, kOnNvme, {}},
        Case{"llama_cpu_to_nvme", kLlama, {}, kOnNvme},
        Case{"experts_cpu_to_nvme", kExperts, {}, kOnNvme},
        Case{"llama_nvme_to_cpu_in_background", kLlama, kOnNvme, {}, true},
        Case{"bf16_moments", kBf16Moments, {}, {}},
        Case{"bf16_moments_cpu_to_nvme", kBf16Moments, {}, kOnNvme, true},
        Case{"bf16_moments_nvme_to_cpu",
             kBf16Moments,
             kOnNvme,
             {"zero_optimization.sub_group_size=777"}},
        Case{"fp16_of_bf16_moments_nvme_to_cpu_in_background",
             kFp16OfBf16Moments,
             kOnNvme,
             {},
             true},
        Case{"adapters_of_bf16_moments", of_adapters(kBf16Moments), {}, kOnNvme},
        Case{"waves",
             {"gradient_accumulation_steps=5", "model.dropout=0.1"},
             {"placement.wave_micro_batches=2"},
             {"placement.wave_micro_batches=1"}},
        Case{"lanes",
             {"gradient_accumulation_steps=6", "run.lanes=3", "run.rounds=2"},
             {"placement.wave_micro_batches=4"},
             {"placement.wave_micro_batches=1"}},
        Case{"adapters", kAdapters, {}, {}}, Case{"adapters_cpu_to_nvme", kAdapters, {}, kOnNvme},
        Case{"adapters_nvme_to_cpu_in_background", kAdapters, kOnNvme, {}, true}),
    [](const auto& test) { return test.param.name; });

TEST(ResumeRefuses, ARunThatIsAnother) {
  const SmallRun small;
  const auto run = small.start();
  run->step();
  const std::string path = save(*run, false);
  const struct {
    std::string override;
    std::string named;
  } others[] = {{"run.seed=8", "seed"},
                {"data.shuffle_seed=8", "data.shuffle_seed was 7 and is 8"},
                {"bf16.enabled=false", "precision"},
                {"model.layers=2", "layers"},
                {"model.dropout=0.2", "dropout"},
                {"model.activation=silu", "the model's activation is silu, and was gelu_new"},
                {"model.norm_epsilon=1e-6", "the model's norm_epsilon is 1e-06, and was 1e-05"},
                {"model.tied_head=false", "the model's tied_head is false, and was true"},
                {"data.sequence_length=8", "data.sequence_length was 16 and is 8"}};
  for (const auto& other : others) {
    const SmallRun changed({other.override});
    const Status resumed = resume(*changed.make(), path);
    ASSERT_FALSE(resumed.ok()) << other.override;
    EXPECT_EQ(resumed.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(resumed.error().message(), HasSubstr(other.named));
    EXPECT_THAT(resumed.error().message(), Not(HasSubstr("data.train")));  // moved, not changed
  }
}

TEST(ResumeRefuses, AdaptersOfAnotherRecipeOrBase) {
  const SmallRun small(kAdapters);
  const auto run = small.start();
  run->step();
  const std::string path = save(*run, false);
  const struct {
    std::vector<std::string> overrides;
    std::string named;
  } others[] = {
      {of_llama(), "recipe.lora.rank is 0, the model itself, and was 4"},
      {of_adapters({"recipe.lora.rank=2"}), "recipe.lora.rank is 2, and was 4"},
      {of_adapters({"recipe.lora.alpha=5"}), "recipe.lora.alpha is 5, and was 8"},
      {of_adapters({"recipe.lora.rank_stabilised=true"}), "rank_stabilised is true"},
      {of_adapters({"recipe.lora.base_bits=8"}), "recipe.lora.base_bits is 8, and was 16"},
      {of_adapters({"recipe.lora.base_bits=4", "recipe.lora.double_quant=true"}),
       "recipe.lora.double_quant is true, and was false"},
      {of_adapters({"recipe.lora.dropout=0"}), "recipe.lora.dropout is 0, and was 0.2"},
      {of_adapters({R"(recipe.lora.targets=["q_proj"])"}), "recipe.lora.targets is [q_proj]"},
      {of_adapters({"model.init_seed=9"}), "on other base weights than those of this run"}};
  for (const auto& other : others) {
    const SmallRun changed(other.overrides);
    const Status resumed = resume(*changed.make(), path);
    ASSERT_FALSE(resumed.ok()) << other.named;
    EXPECT_EQ(resumed.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(resumed.error().message(), HasSubstr(other.named));
  }
  // And a whole model's checkpoint is none for adapters.
  const SmallRun whole(kLlama);
  const auto whole_run = whole.start();
  const std::string of_model = save(*whole_run, false);
  const Status resumed = resume(*small.make(), of_model);
  ASSERT_FALSE(resumed.ok());
  EXPECT_THAT(resumed.error().message(), HasSubstr("was 0, the model"));
}

TEST(ResumeRefuses, TokensThatHaveChangedInASentence) {
  const SmallRun small;
  std::string path;
  {
    const auto run = small.start();
    path = save(*run, false);
  }
  write_corpus(small.folder().file("train.bin"), 19'000);
  const Status resumed = resume(*small.make(), path);
  ASSERT_FALSE(resumed.ok());
  EXPECT_THAT(resumed.error().message(), HasSubstr("files of data.train"));
}

// One token that is in no sample of the older fingerprint, which is all that checkpoints of earlier
// versions can be compared with.
TEST(ResumeRefuses, OneTokenThatHasChanged) {
  const SmallRun small;
  const auto run = small.start();
  const std::string path = save(*run, false);
  {
    std::fstream file(small.folder().file("train.bin"),
                      std::ios::in | std::ios::out | std::ios::binary);
    constexpr std::uint16_t kOther = 60;
    file.seekp(1000 * sizeof(kOther));
    file.write(reinterpret_cast<const char*>(&kOther), sizeof(kOther));
  }
  const Status resumed = resume(*small.make(), path);
  ASSERT_FALSE(resumed.ok());
  EXPECT_THAT(resumed.error().message(), HasSubstr("files of data.train"));

  auto manifest = read_checkpoint_manifest(*run->drives().reads, path);
  ASSERT_OK(manifest);
  std::string& order = manifest->state.run.data_order;
  order.resize(order.rfind('-'));
  std::ofstream(path + "/checkpoint.json", std::ios::trunc) << to_text(*manifest);
  EXPECT_OK(resume(*small.make(), path));
  order.back() = order.back() == '0' ? '1' : '0';
  std::ofstream(path + "/checkpoint.json", std::ios::trunc) << to_text(*manifest);
  EXPECT_FALSE(resume(*small.make(), path).ok());
}

TEST(ResumeWarns, OfAnotherNumberOfThreads) {
  const SmallRun small;
  const auto run = small.start();
  const std::string path = save(*run, false);
  std::string warnings;
  log::set_sink([&](log::Level, std::string_view message) { warnings += message; });
  const SmallRun changed({"run.cpu_threads=2"});
  const Status resumed = resume(*changed.make(), path);
  log::set_sink({});
  EXPECT_TRUE(resumed.ok());
  EXPECT_THAT(warnings, ContainsRegex("1 CPU threads.*2"));
}

// For tied weights, saved by a program that added both uses of a parameter in one sum.
TEST(ResumeFromAnEarlierVersion, SaysThatTheLastBitsMayDiffer) {
  const SmallRun small;
  const auto run = small.start();
  const std::string path = save(*run, false);
  auto manifest = read_checkpoint_manifest(*run->drives().reads, path);
  ASSERT_OK(manifest);
  EXPECT_TRUE(manifest->state.run.sums.by_use);
  const auto warnings_of_a_resume = [&] {
    std::string warnings;
    log::set_sink([&](log::Level, std::string_view message) { warnings += message; });
    EXPECT_TRUE(resume(*SmallRun().make(), path).ok());
    log::set_sink({});
    return warnings;
  };
  EXPECT_EQ(warnings_of_a_resume(), "");
  manifest->state.run.sums.by_use = false;
  std::ofstream(path + "/checkpoint.json", std::ios::trunc) << to_text(*manifest);
  EXPECT_THAT(warnings_of_a_resume(), HasSubstr("another order"));
}

TEST(ResumeWarns, OfAnotherOrderOfAdditions) {
  const std::vector<std::string> base = {"gradient_accumulation_steps=4"};
  const auto run = SmallRun({base[0], "run.lanes=2"}).start();
  const std::string path = save(*run, false);
  std::string warnings;
  log::set_sink([&](log::Level, std::string_view message) { warnings += message; });
  EXPECT_TRUE(resume(*SmallRun({base[0], "run.lanes=2"}).make(), path).ok());
  EXPECT_EQ(warnings, "");
  EXPECT_TRUE(resume(*SmallRun({base[0], "run.rounds=4"}).make(), path).ok());
  log::set_sink({});
  EXPECT_THAT(warnings, ContainsRegex("2 lanes.*1 lane.*4 rounds"));
}

// Moments are stored in another type from here on. They are widened without loss, or narrowed to
// the same bits wherever the state is stored, and a message says so.
TEST(ResumeConverts, MomentsToTheTypeThatTheRunStores) {
  const auto taken_over = [](const std::string& path, const std::vector<std::string>& overrides,
                             std::string& said) {
    const SmallRun small(overrides);
    const auto run = small.make();
    log::set_sink([&](log::Level, std::string_view message) { said += message; });
    EXPECT_OK(resume(*run, path));
    log::set_sink({});
    std::vector<float> state = state_of(*run);
    run->step();  // and continues
    return state;
  };
  const auto saved = [](const SmallRun& small, std::vector<float>& state) {
    const auto run = small.start();
    for (int i = 0; i < kStop; ++i) run->step();
    state = state_of(*run);
    return save(*run, false);
  };
  std::string said;
  std::vector<float> narrow, wide;
  const SmallRun of_narrow(kBf16Moments), of_wide(kBf16);
  const std::string narrow_path = saved(of_narrow, narrow);
  const std::string wide_path = saved(of_wide, wide);
  EXPECT_EQ(taken_over(narrow_path, kBf16Moments, said), narrow);
  EXPECT_EQ(taken_over(wide_path, kBf16, said), wide);
  EXPECT_EQ(said, "");
  EXPECT_EQ(taken_over(narrow_path, kBf16, said), narrow);
  EXPECT_THAT(said, HasSubstr("same values"));

  said.clear();
  std::vector<std::string> on_nvme = kBf16Moments;
  on_nvme.insert(on_nvme.end(), kOnNvme.begin(), kOnNvme.end());
  const std::vector<float> narrowed = taken_over(wide_path, kBf16Moments, said);
  EXPECT_THAT(said, HasSubstr("they are rounded stochastically"));
  EXPECT_EQ(taken_over(wide_path, on_nvme, said), narrowed);
  const std::size_t masters = wide.size() / 3;
  EXPECT_TRUE(std::equal(wide.begin(), wide.begin() + static_cast<std::ptrdiff_t>(masters),
                         narrowed.begin()));
  std::size_t up = 0, down = 0;
  for (std::size_t i = masters; i < wide.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(narrowed[i]) & 0xFFFF, 0U);
    ASSERT_NEAR(narrowed[i], wide[i], 0x1p-7 * std::abs(wide[i]));
    up += narrowed[i] > wide[i] ? 1 : 0;
    down += narrowed[i] < wide[i] ? 1 : 0;
  }
  EXPECT_GT(up, wide.size() / 8);
  EXPECT_GT(down, wide.size() / 8);
}

// For any precision, seed and order: the same as beginning with those weights.
TEST(ResumeImported, BeginsAsARunThatWasGivenTheWeights) {
  const SmallRun source({"bf16.enabled=false"});
  const auto made = source.start();
  made->step();
  const std::string theirs = source.folder().file("theirs");
  std::filesystem::create_directory(theirs);
  ASSERT_OK(made->save_weights(theirs + "/model.safetensors", DType::kF32));
  const ModelShape shape = source.config().model.shape();
  std::ofstream(theirs + "/config.json")
      << family_of(shape).write_config({.shape = shape, .special = {}, .notes = {}});
  const auto imported = import_model(
      *made->drives().reads, {.from = theirs, .directory = source.folder().file("imported")});
  ASSERT_OK(imported);
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {"run.seed=3"},
           {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=6"},
           {"bf16.enabled=false", "model.dropout=0.3", "data.shuffle_seed=9"}}) {
    SCOPED_TRACE(overrides.back());
    Trained expected;
    std::vector<std::string> with_weights = overrides;
    with_weights.push_back("model.init_from=" + theirs);
    train(*SmallRun(with_weights).start(), 3, expected);
    Trained got;
    const SmallRun small(overrides);
    const auto run = small.make();
    ASSERT_OK(resume(*run, imported->checkpoint));
    train(*run, 3, got);
    expect_equal(expected, got);
  }
  const Status other = resume(*SmallRun({"model.heads=4"}).make(), imported->checkpoint);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), ContainsRegex("heads is 4.*2"));
}

// Like a learning rate.
TEST(Resume, ContinuesWithAnotherCoefficientOfTheBalanceLoss) {
  const SmallRun with(of_experts({"model.router_aux_loss_coef=0.5"}));
  const auto first = with.start();
  Trained before;
  train(*first, 2, before);
  const std::string path = save(*first, false);
  const auto resumed = [&](const char* coefficient) {
    const SmallRun small(of_experts({std::string("model.router_aux_loss_coef=") + coefficient}));
    const auto run = small.make();
    Trained trained;
    const Status status = resume(*run, path);
    EXPECT_TRUE(status.ok()) << status.error().message();
    if (status.ok()) train(*run, 2, trained);
    return trained;
  };
  const Trained same = resumed("0.5");
  const Trained none = resumed("0");
  const Trained more = resumed("2");
  EXPECT_NE(same.losses, none.losses);
  EXPECT_NE(same.losses, more.losses);
}

// Models on the Hub with experts have output_router_logits false.
TEST(ResumeImported, TrainsABalanceLossThatTheModelWasPublishedWithout) {
  const SmallRun source(of_experts({"model.router_aux_loss_coef=0"}));
  const auto made = source.start();
  const std::string theirs = source.folder().file("theirs");
  std::filesystem::create_directory(theirs);
  ASSERT_OK(made->save_weights(theirs + "/model.safetensors", DType::kF32));
  const ModelShape shape = source.config().model.shape();
  std::ofstream(theirs + "/config.json")
      << family_of(shape).write_config({.shape = shape, .special = {}, .notes = {}});
  const auto imported = import_model(
      *made->drives().reads, {.from = theirs, .directory = source.folder().file("imported")});
  ASSERT_OK(imported);
  Trained expected;
  train(*SmallRun(of_experts({"model.init_from=" + theirs})).start(), 3, expected);
  Trained got;
  const SmallRun small(of_experts());
  const auto run = small.make();
  ASSERT_OK(resume(*run, imported->checkpoint));
  train(*run, 3, got);
  expect_equal(expected, got);
  const Status other =
      resume(*SmallRun(of_experts({"model.experts=5"})).make(), imported->checkpoint);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), ContainsRegex("experts is 5.*6"));
}

}  // namespace
}  // namespace sluice::engine
