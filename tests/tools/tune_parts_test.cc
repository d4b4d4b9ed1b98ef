// The parts of `sluice tune` other than the search: dimensions, fractions, merged files, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/tune/trial_messages.h"
#include "tools/tune/tune_dimensions.h"
#include "tools/tune/tune_report.h"

namespace sluice::tools {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRun = R"({
  "train_batch_size": 12, "train_micro_batch_size_per_gpu": 3,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "sub_group_size": 4000000,
                        "offload_optimizer": {"device": "auto"}},
  "aio": {"queue_depth": 16},
  "model": {"layers": 4, "hidden": 64, "heads": 2, "context": 32, "vocab": 100},
  "placement": {"recompute": "off"},
  "budget": {"nvme_paths": ["nvme"]}
})";

config::Sources sources(const std::string& text = kRun) {
  return {.run_file = config::Source{.name = "run.json", .text = text},
          .deepspeed = {},
          .overrides = {}};
}

config::Resolved resolved(const config::Sources& from) {
  auto made = config::resolve(from);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
  return *std::move(made);
}

const PlanFacts kAllTiers = {.cuda = true,
                             .state_on_nvme = true,
                             .params_on_nvme = true,
                             .gpu_fraction = 0.2,
                             .cpu_fraction = 0.3,
                             .nvme_fraction = 0.5,
                             .largest_unit_elements = 8'000'000,
                             .units = 6,
                             .prefetch_units = 2,
                             .swap_buffers = 4,
                             .record_elements = 4'000'000};

TuneSpace space(const PlanFacts& facts, const VaryOptions& options = {}) {
  auto made = tune_space(resolved(sources()), facts, options);
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

std::vector<std::string> names(const TuneSpace& found) {
  std::vector<std::string> all;
  for (const Dimension& dimension : found.dimensions) all.push_back(dimension.name);
  return all;
}

const Dimension& named(const TuneSpace& found, const std::string& name) {
  for (const Dimension& dimension : found.dimensions)
    if (dimension.name == name) return dimension;
  throw std::out_of_range(name);
}

std::vector<std::string> labels(const Dimension& dimension) {
  std::vector<std::string> all;
  for (const Choice& choice : dimension.choices) all.push_back(choice.label);
  return all;
}

TEST(TuneSpace, SplitsTheTrainBatchInEveryWay) {
  const Dimension batch = named(space({}), "micro-batch");
  EXPECT_THAT(labels(batch), ElementsAre("1 x 12", "2 x 6", "3 x 4", "4 x 3", "6 x 2", "12 x 1"));
  EXPECT_EQ(batch.start, 2);
  EXPECT_TRUE(batch.choices[2].keys.empty());
  for (const Choice& choice : batch.choices) {
    const config::Config config = resolved(with_changes(sources(), choice.keys)).config;
    EXPECT_EQ(config.batch.train, 12);
    EXPECT_EQ(
        std::to_string(config.batch.micro) + " x " + std::to_string(config.batch.accumulation),
        choice.label);
  }
}

TEST(TuneSpace, EveryChoiceResolvesAndTheStartSaysNothing) {
  const TuneSpace found = space(kAllTiers, {.vary = {"all"}, .keep = {}});
  const std::string as_it_is = config::to_json(resolved(sources()).config);
  for (const Dimension& dimension : found.dimensions) {
    for (std::size_t i = 0; i < dimension.choices.size(); ++i) {
      const Choice& choice = dimension.choices[i];
      const std::string changed =
          config::to_json(resolved(with_changes(sources(), choice.keys)).config);
      const bool is_start = static_cast<int>(i) == dimension.start;
      if (dimension.shifts == Shift::kNone) {
        EXPECT_EQ(changed == as_it_is, is_start) << dimension.name << " " << choice.label;
      }
      EXPECT_EQ(choice.shift == 0, is_start || dimension.shifts == Shift::kNone);
    }
  }
}

TEST(TuneSpace, VariesOnlyWhatHasAnEffect) {
  EXPECT_THAT(names(space({})), ElementsAre("micro-batch", "overlap_update"));
  EXPECT_THAT(names(space(kAllTiers)),
              ElementsAre("micro-batch", "unit_inputs_to_cpu", "state on the GPU", "state in RAM",
                          "prefetch_units", "overlap_update", "sub_group_size", "record_elements",
                          "swap_buffers", "block_size", "queue_depth", "intra_op_parallelism"));
  PlanFacts no_drives = kAllTiers;
  no_drives.state_on_nvme = no_drives.params_on_nvme = false;
  no_drives.nvme_fraction = 0;
  EXPECT_THAT(names(space(no_drives)),
              ElementsAre("micro-batch", "unit_inputs_to_cpu", "state on the GPU", "prefetch_units",
                          "overlap_update"));
}

TEST(TuneSpace, CutsAStepOfSeveralMicroBatchesIntoWaves) {
  PlanFacts facts = kAllTiers;
  facts.wave_micro_batches = 3;  // the plan's value
  EXPECT_THAT(labels(named(space(facts), "wave_micro_batches")), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(names(space(facts)), testing::Contains("wave_micro_batches"));
  EXPECT_THAT(names(space(facts, {.keep = {"placement.wave_micro_batches"}})),
              testing::Not(testing::Contains("wave_micro_batches")));
  const auto in_one = tune_space(
      resolved(with_changes(sources(), {{"train_micro_batch_size_per_gpu", "12"}})), facts, {});
  ASSERT_TRUE(in_one.ok());
  EXPECT_THAT(names(*in_one), testing::Not(testing::Contains("wave_micro_batches")));
}

TEST(TuneSpace, LeavesAWishAloneUnlessItIsNamed) {
  const TuneSpace by_default = space(kAllTiers);
  EXPECT_THAT(by_default.kept, ElementsAre("placement.recompute"));
  for (const char* const word : {"placement.recompute", "all"}) {
    const TuneSpace asked = space(kAllTiers, {.vary = {word}, .keep = {}});
    EXPECT_THAT(labels(named(asked, "recompute")), ElementsAre("auto", "on", "off"));
    EXPECT_EQ(named(asked, "recompute").start, 2);
    EXPECT_TRUE(asked.kept.empty());
  }
}

TEST(TuneSpace, KeepsWhatIsToBeKept) {
  const TuneSpace found = space(
      kAllTiers, {.vary = {"all"}, .keep = {"gradient_accumulation_steps", "aio.block_size"}});
  EXPECT_THAT(names(found), Not(::testing::Contains("micro-batch")));
  EXPECT_THAT(names(found), Not(::testing::Contains("block_size")));
  EXPECT_THAT(names(found), ::testing::Contains("queue_depth"));
}

TEST(TuneSpace, RefusesKeysThatCannotBeVaried) {
  const config::Resolved run = resolved(sources());
  for (const VaryOptions& options :
       {VaryOptions{.vary = {"optimizer.params.lr"}, .keep = {}},
        VaryOptions{.vary = {"zero_optimization.offload_param.device"}, .keep = {}},
        VaryOptions{.vary = {}, .keep = {"all"}}}) {
    const auto refused = tune_space(run, {}, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr("aio.queue_depth"));
  }
}

TEST(TuneSpace, RefusesAKeyThatIsBothVariedAndKept) {
  const auto refused =
      tune_space(resolved(sources()), {}, {.vary = {"aio.block_size"}, .keep = {"aio.block_size"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("both name aio.block_size"));
}

// "auto" leaves it to the planner, and does not count as a setting.
TEST(TuneSpace, VariesWhatTheConfigurationLeavesOpen) {
  config::Sources with = sources();
  with.overrides = {"placement.optimizer_fractions=auto"};
  const auto found = tune_space(resolved(with), kAllTiers, {});
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(names(*found), ::testing::Contains("state on the GPU"));
  EXPECT_THAT(found->kept, ElementsAre("placement.recompute"));
}

TEST(TuneSpace, SplitsAHugeBatchAtOnce) {
  config::Sources with = sources();
  with.overrides = {"train_batch_size=1073741824", "train_micro_batch_size_per_gpu=1"};
  const auto found = tune_space(resolved(with), {}, {});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(labels(named(*found, "micro-batch")).size(), 31U);
}

TEST(TuneSpace, HasRecordsAndSubGroupsThatAUnitHolds) {
  for (const char* const name : {"sub_group_size", "record_elements"})
    for (const std::string& label : labels(named(space(kAllTiers), name))) {
      EXPECT_LE(std::stoll(label), kAllTiers.largest_unit_elements);
      EXPECT_GE(std::stoll(label), 65'536);
    }
  EXPECT_THAT(labels(named(space(kAllTiers), "prefetch_units")), ElementsAre("1", "2", "3", "4"));
}

void expect_shares(const std::optional<config::TierFractions>& fractions, double gpu, double cpu,
                   double nvme) {
  ASSERT_TRUE(fractions);
  EXPECT_NEAR(fractions->gpu, gpu, 1e-9);
  EXPECT_NEAR(fractions->cpu, cpu, 1e-9);
  EXPECT_NEAR(fractions->nvme, nvme, 1e-9);
}

TEST(ShiftedFractions, MoveToTheNextTierThatHasSome) {
  const config::TierFractions all{.gpu = 0.2, .cpu = 0.3, .nvme = 0.5};
  expect_shares(shifted(all, Shift::kToGpu, 0.1, true), 0.3, 0.2, 0.5);
  expect_shares(shifted(all, Shift::kToGpu, -0.1, true), 0.1, 0.4, 0.5);
  expect_shares(shifted(all, Shift::kToGpu, -0.9, true), 0, 0.5, 0.5);
  expect_shares(shifted(all, Shift::kToCpu, 0.1, true), 0.2, 0.4, 0.4);
  const config::TierFractions no_ram{.gpu = 0.5, .cpu = 0, .nvme = 0.5};
  expect_shares(shifted(no_ram, Shift::kToGpu, 0.1, true), 0.6, 0, 0.4);
  expect_shares(shifted(no_ram, Shift::kToGpu, -0.1, false), 0.4, 0.1, 0.5);
}

TEST(ShiftedFractions, AreNothingWhereNothingCanMove) {
  EXPECT_FALSE(shifted({.gpu = 1, .cpu = 0, .nvme = 0}, Shift::kToGpu, 0.1, false));
  EXPECT_FALSE(shifted({.gpu = 0, .cpu = 1, .nvme = 0}, Shift::kToGpu, -0.1, false));
  EXPECT_FALSE(shifted({.gpu = 0, .cpu = 1, .nvme = 0}, Shift::kToCpu, 0.1, true));
  EXPECT_FALSE(shifted({.gpu = 0, .cpu = 0.5, .nvme = 0.5}, Shift::kToCpu, 0.1, false));
}

TEST(ShiftedFractions, ResolveWhateverTheyAre) {
  for (int i = 0; i <= 1000; ++i) {
    const double gpu = i / 1000.0 / 3;
    const KeyValue key = fractions_key({.gpu = gpu, .cpu = 1 - gpu - 0.1234567, .nvme = 0.1234567});
    const auto found = resolved(with_changes(sources(), {key})).config.placement;
    ASSERT_TRUE(found.optimizer_fractions);
    EXPECT_NEAR(found.optimizer_fractions->gpu, gpu, 1e-4);
  }
}

nlohmann::ordered_json merged(const config::Sources& from, const std::vector<KeyValue>& changes) {
  const auto text = merged_config(from, changes);
  EXPECT_TRUE(text.ok());
  const config::Config again = resolved(sources(*text)).config;
  EXPECT_EQ(config::to_json(again), config::to_json(resolved(with_changes(from, changes)).config));
  return nlohmann::ordered_json::parse(*text);
}

const std::vector<KeyValue> kChanges = {{"train_micro_batch_size_per_gpu", "6"},
                                        {"gradient_accumulation_steps", "2"},
                                        {"placement.prefetch_units", "3"},
                                        {"placement.recompute", "\"on\""}};

TEST(MergedConfig, IsTheUsersFileWithTheChangesInIt) {
  auto json = merged(sources(), kChanges);
  EXPECT_EQ(json["placement"],
            (nlohmann::ordered_json{{"recompute", "on"}, {"prefetch_units", 3}}));
  EXPECT_EQ(json["gradient_accumulation_steps"], 2);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 6);
  EXPECT_EQ(json["aio"], (nlohmann::ordered_json{{"queue_depth", 16}}));
  EXPECT_FALSE(json.contains("run"));  // only what the user set
  EXPECT_EQ(json.begin().key(), "train_batch_size");
}

TEST(MergedConfig, WithoutChangesIsTheUsersFile) {
  EXPECT_EQ(merged(sources(), {}), nlohmann::ordered_json::parse(kRun));
}

TEST(MergedConfig, HoldsTheOverrides) {
  config::Sources with = sources();
  with.overrides = {"run.dir=runs/a", "model.layers=3", "placement.recompute=on"};
  auto json = merged(with, kChanges);
  EXPECT_EQ(json["run"]["dir"], "runs/a");
  EXPECT_EQ(json["model"]["layers"], 3);
}

TEST(MergedConfig, HoldsADeepSpeedFileToo) {
  config::Sources with = sources();
  with.deepspeed =
      config::Source{.name = "ds.json",
                     .text = R"({"train_batch_size": 12, "gradient_clipping": 0.5, "amp": {}})"};
  EXPECT_EQ(merged(with, kChanges)["gradient_clipping"], 0.5);
}

TEST(MergedConfig, ReplacesASectionThatIsNone) {
  std::string text = kRun;
  text.replace(text.find(R"({"recompute": "off"})"), 20, "null");
  EXPECT_EQ(merged(sources(text), kChanges)["placement"]["prefetch_units"], 3);
}

TEST(TrialMessages, ArriveAsTheyWereSent) {
  const std::string config = "{\"a\": \"\xc3\xa9\n\"}";
  const auto plan = parse_request(to_line(PlanRequest{config}));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(std::get<PlanRequest>(*plan).config, config);
  const auto measure = parse_request(
      to_line(MeasureRequest{.config = config, .warmup = 3, .steps = 7, .seconds = 1.5}));
  ASSERT_TRUE(measure.ok());
  const auto& request = std::get<MeasureRequest>(*measure);
  EXPECT_EQ(request.config, config);
  EXPECT_EQ(request.warmup * 10 + request.steps, 37);
  EXPECT_EQ(request.seconds, 1.5);

  const TrialPlan sent{.forecast = {.step_s = 2, .refusal = "no", .run_id = "ab"},
                       .facts = kAllTiers};
  const auto got = parse_plan(to_line(sent));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(to_line(*got), to_line(sent));
  EXPECT_EQ(got->facts.nvme_fraction, 0.5);
  EXPECT_EQ(got->forecast.refusal, "no");

  const Trial trial{.failure = {},
                    .step_s = 0.25,
                    .error_s = 0.01,
                    .tokens_per_s = 4000,
                    .gpu_bytes = 1,
                    .host_bytes = std::uint64_t{1} << 40};
  const auto measured = parse_trial(to_line(trial));
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(to_line(*measured), to_line(trial));
  EXPECT_EQ(measured->host_bytes, trial.host_bytes);
  EXPECT_EQ(parse_trial(to_line(Trial{.failure = "out of memory"}))->failure, "out of memory");
  for (const std::string& line : {to_line(sent), to_line(trial), to_line(PlanRequest{config})})
    EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(TrialMessages, ABrokenOneIsAnError) {
  for (const char* const line : {"", "{", "[]", "3", "{\"plan\": 3}", "{\"step_s\": \"fast\"}",
                                 "{\"measure\": \"{}\"}", "Segmentation fault"}) {
    EXPECT_FALSE(parse_request(line).ok()) << line;
    EXPECT_FALSE(parse_plan(line).ok()) << line;
    EXPECT_FALSE(parse_trial(line).ok()) << line;
  }
  EXPECT_FALSE(parse_trial("{\"failure\": \"\"}")->measured());
  Trial no_time{.failure = {}, .step_s = 1};
  EXPECT_TRUE(parse_trial(to_line(no_time))->measured());
  no_time.step_s = 0;
  EXPECT_FALSE(parse_trial(to_line(no_time))->measured());
}

TuneRow row(const Point& point, Verdict verdict, double step_s, const std::string& reason = {}) {
  return {.point = point,
          .forecast = {.step_s = 2, .refusal = {}, .run_id = {}},
          .verdict = verdict,
          .reason = reason,
          .trial = {.failure = verdict == Verdict::kFailed ? reason : "",
                    .step_s = step_s,
                    .tokens_per_s = step_s > 0 ? 100 / step_s : 0,
                    .took_s = 5}};
}

class TuneReportTest : public ::testing::Test {
 protected:
  TuneReportTest() {
    dimensions_ = {{.name = "recompute",
                    .choices = {{.label = "auto", .keys = {}},
                                {.label = "on", .keys = {}},
                                {.label = "off", .keys = {}}}}};
    result_.rows = {row({0}, Verdict::kStart, 2), row({1}, Verdict::kFailed, 0, "out of memory"),
                    row({2}, Verdict::kFaster, 1.25)};
    result_.best = 2;
    result_.confirmation = Confirmation{.start_step_s = {2, 2.2}, .best_step_s = {1.4, 1.4}};
  }
  std::string table() { return table_of({dimensions_, result_, keys_, {"placement.recompute"}}); }

  std::vector<Dimension> dimensions_;
  TuneResult result_;
  std::vector<KeyValue> keys_ = {{"placement.recompute", "\"off\""}};
};

TEST_F(TuneReportTest, ShowsEveryTrialAndTheGain) {
  const std::string text = table();
  for (const char* const words :
       {"as configured: start", "recompute on: failed: out of memory", "recompute off: best",
        "1250 ms", "1.500 times as fast", "--vary placement.recompute"})
    EXPECT_THAT(text, HasSubstr(words));
}

TEST_F(TuneReportTest, SaysWhenTheGainWasNoise) {
  EXPECT_TRUE(is_worth_it(result_));
  result_.confirmation = Confirmation{.start_step_s = {2}, .best_step_s = {2.1}};
  EXPECT_FALSE(is_worth_it(result_));
  EXPECT_THAT(table(), HasSubstr("noise"));
  result_.confirmation = Confirmation{};  // no time was left for it
  EXPECT_TRUE(is_worth_it(result_));
}

TEST_F(TuneReportTest, ChangesNothingWhereTheBestDidNotRunAgain) {
  result_.confirmation = Confirmation{
      .start_step_s = {2, 2}, .best_step_s = {1.4}, .failure = "out of memory\na table"};
  EXPECT_FALSE(is_worth_it(result_));
  EXPECT_THAT(table(), ContainsRegex("it failed.*out of memory"));
}

TEST_F(TuneReportTest, HasOneLineForATrial) {
  result_.rows[1].reason = "the run does not fit\n  memory  9G";
  EXPECT_THAT(table(), Not(HasSubstr("9G")));
  EXPECT_THAT(table(), HasSubstr("recompute on: failed"));
}

TEST_F(TuneReportTest, TellsSlowerTrialsFromThoseWithinNoise) {
  result_.rows.push_back(row({1}, Verdict::kNotFaster, 1.3));
  result_.rows.push_back(row({0}, Verdict::kNotFaster, 1.3));
  result_.rows.back().trial.error_s = 0.03;
  EXPECT_THAT(table(), HasSubstr("recompute on: slower\n"));
  EXPECT_THAT(table(), HasSubstr("within noise"));
}

TEST_F(TuneReportTest, IsJsonForPrograms) {
  const auto json =
      nlohmann::json::parse(json_of({dimensions_, result_, keys_, {"placement.recompute"}}));
  ASSERT_EQ(json["trials"].size(), 3U);
  EXPECT_EQ(json["trials"][1]["reason"], "out of memory");
  EXPECT_FALSE(json["trials"][1].contains("step_s"));
  EXPECT_EQ(json["trials"][2]["step_s"], 1.25);
  EXPECT_EQ(json["best"]["keys"]["placement.recompute"], "off");
  EXPECT_NEAR(json["again"]["gain"].get<double>(), 1.5, 1e-9);
}

}  // namespace
}  // namespace sluice::tools
