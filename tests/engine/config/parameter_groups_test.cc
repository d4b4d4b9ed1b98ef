// Parameter groups: which learning rate and weight decay apply to which parameters, which groups
// are refused; and clipping by value.
#include "engine/config/parameter_groups.h"

#include <map>

#include "engine/config/changes.h"
#include "engine/families/families.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string run_file(const std::string& groups, const std::string& more = "") {
  return R"({"train_batch_size": 8,
             "model": {"preset": "custom", "layers": 2, "hidden": 64, "heads": 4, "context": 32,
                       "vocab": 96)" +
         more + R"(},
             "optimizer": {"params": {"lr": 0.5, "weight_decay": 0.25}, "groups": )" +
         groups + "}}";
}

constexpr const char* kLlama = R"(, "family": "llama")";

// By parameter name.
std::map<std::string, ParameterSetting> settings_of(const Config& config) {
  const engine::ModelShape shape = config.model.shape();
  const engine::ModelLayout layout = engine::model_layout({.shape = shape});
  const ParameterSettings made =
      parameter_settings(config.optimizer, layout, engine::family_of(shape).parameter_names(shape))
          .value();
  std::map<std::string, ParameterSetting> by_name;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const auto& parameters = layout.layout(unit).parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const int index =
          made.of.empty() ? parameters[i].group : made.of[static_cast<std::size_t>(unit)][i];
      by_name[parameters[i].name] = made.each[static_cast<std::size_t>(index)];
    }
  }
  return by_name;
}

std::map<std::string, ParameterSetting> settings(const std::string& groups,
                                                 std::vector<std::string> overrides = {}) {
  return settings_of(accepted(resolve_run(run_file(groups), std::move(overrides))).config);
}

std::string refused(const std::string& groups, const std::string& more = "") {
  return refusal(resolve_run(run_file(groups, more)));
}

constexpr ParameterSetting kMatrix{0.5, 0.25};
constexpr ParameterSetting kVector{0.5, 0};

TEST(ParameterGroups, AreMatricesAndVectorsWhereNoneAreGiven) {
  auto made = settings("[]");
  EXPECT_EQ(made["wte.weight"], kMatrix);
  EXPECT_EQ(made["h.1.attn.c_attn.weight"], kMatrix);
  EXPECT_EQ(made["h.1.attn.c_attn.bias"], kVector);
  EXPECT_EQ(made["ln_f.weight"], kVector);
  EXPECT_EQ(settings("[]", {"optimizer.params.decayed=all"})["ln_f.weight"], kMatrix);
}

TEST(ParameterGroups, GiveTheirNumbersToWhatTheyMatchAndNothingElse) {
  auto made = settings(R"([{"match": "wte.*", "lr": 0.125},
                           {"match": ["*.c_fc.*", "*ln_f*"], "weight_decay": 0.75},
                           {"match": "h.[1-9].*.c_proj.*", "lr": 0.0625, "weight_decay": 0}])");
  const std::map<std::string, ParameterSetting> wanted = {{"wte.weight", {0.125, 0.25}},
                                                          {"wpe.weight", kMatrix},
                                                          {"h.0.mlp.c_fc.weight", {0.5, 0.75}},
                                                          {"h.0.mlp.c_fc.bias", {0.5, 0.75}},
                                                          {"ln_f.weight", {0.5, 0.75}},
                                                          {"ln_f.bias", {0.5, 0.75}},
                                                          {"h.1.attn.c_proj.weight", {0.0625, 0}},
                                                          {"h.1.mlp.c_proj.bias", {0.0625, 0}},
                                                          {"h.0.attn.c_proj.weight", kMatrix},
                                                          {"h.0.attn.c_proj.bias", kVector},
                                                          {"h.1.ln_1.weight", kVector}};
  for (const auto& [name, setting] : wanted) EXPECT_EQ(made[name], setting) << name;
}

TEST(ParameterGroups, TheFirstThatMatchesCounts) {
  const char* const bias_first =
      R"([{"match": "*.bias", "lr": 0.125}, {"match": "h.0.*", "lr": 2}])";
  const char* const layer_first =
      R"([{"match": "h.0.*", "lr": 2}, {"match": "*.bias", "lr": 0.125}])";
  EXPECT_EQ(settings(bias_first)["h.0.ln_1.bias"].learning_rate, 0.125);
  EXPECT_EQ(settings(layer_first)["h.0.ln_1.bias"].learning_rate, 2);
  EXPECT_EQ(settings(layer_first)["h.1.ln_1.bias"].learning_rate, 0.125);
}

TEST(ParameterGroups, MatchNamesOfCheckpointsAndOfTransformers) {
  for (const char* pattern : {"layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight",
                              "*.0.*up_proj*", "model.layers.?.mlp.[u]p_proj.*"}) {
    SCOPED_TRACE(pattern);
    auto made = settings_of(
        accepted(resolve_run(run_file(std::string(R"([{"match": ")") + pattern + R"(", "lr": 2}])",
                                      kLlama)))
            .config);
    EXPECT_EQ(made["layers.0.mlp.up_proj.weight"].learning_rate, 2);
    EXPECT_EQ(made["layers.0.mlp.down_proj.weight"].learning_rate, 0.5);
    EXPECT_EQ(made["layers.0.input_layernorm.weight"], kVector);
  }
  EXPECT_THAT(refused(R"([{"match": "model.lm_head.*", "lr": 2}])", kLlama), HasSubstr("lm_head"));
}

TEST(ParameterGroups, AreCountedInTheReport) {
  const Resolved resolved = accepted(
      resolve_run(run_file(R"([{"match": "*.bias", "lr": 1}, {"match": "wte.weight", "lr": 1}])")));
  EXPECT_EQ(report_on(resolved, "optimizer.groups").reason, "parameters per group: 13, 1");
  EXPECT_EQ(report_on(resolved, "optimizer.groups").outcome, Outcome::kHonoured);
}

TEST(ParameterGroups, APatternWithoutParametersIsRefusedWithTheNearestNames) {
  EXPECT_THAT(refused(R"([{"match": "*.biass", "weight_decay": 0}])"),
              AllOf(HasSubstr("optimizer.groups[0].match \"*.biass\""),
                    HasSubstr("h.0.ln_1.bias, h.0.attn.c_attn.bias")));
  EXPECT_THAT(
      refused(R"([{"match": ["*.bias", "transformer.wt.weight"], "lr": 1}])"),
      AllOf(HasSubstr("\"transformer.wt.weight\""), HasSubstr("similar names are wte.weight")));
  EXPECT_THAT(refused(R"([{"match": "lm_head.*", "lr": 1}])"),
              ContainsRegex("lm_head.weight.*wte.weight"));
  EXPECT_THAT(refused(R"([{"match": "*q_proj*", "lr": 1}])"), HasSubstr("similar names"));
  // Parameters that an earlier group matched do not count for this one.
  EXPECT_THAT(refused(R"([{"match": "*.bias", "lr": 1}, {"match": "ln_f.bias", "lr": 2}])"),
              AllOf(ContainsRegex("optimizer.groups\\[1\\].match \"ln_f.bias\".*left"),
                    HasSubstr("before them")));
}

// They may belong to a Python module, whose names no family has.
TEST(ParameterGroups, AreLeftToThePlanWhereNoModelIsNamed) {
  const auto file = [](const std::string& more) {
    return R"({"train_batch_size": 8, "optimizer": {"groups": [)"
           R"({"match": "encoder.*", "weight_decay": 0}]})" +
           more + "}";
  };
  const auto with = [&](const std::string& more) { return resolve_run(file(more)); };
  EXPECT_EQ(accepted(with("")).config.optimizer.groups.size(), 1U);
  const char* const sentence = "optimizer.groups[0].match \"encoder.*\" matches no parameter";
  EXPECT_THAT(refusal(with(R"(, "model": {"preset": "gpt2-small"})")), HasSubstr(sentence));
  EXPECT_THAT(refusal(resolve({.run_file = Source{.name = "run.json", .text = file("")},
                               .facts = {.means_default_model = true}})),
              HasSubstr(sentence));
}

TEST(ParameterGroups, MistakesInAnEntryAreNamed) {
  EXPECT_THAT(refused(R"({"match": "*"})"), HasSubstr("list of objects"));
  EXPECT_THAT(refused(R"(["*.bias"])"), HasSubstr("optimizer.groups[0] is \"*.bias\""));
  EXPECT_THAT(refused(R"([{"lr": 1}])"), HasSubstr("needs match"));
  EXPECT_THAT(refused(R"([{"match": "*.bias"}])"), HasSubstr("neither lr nor weight_decay"));
  EXPECT_THAT(refused(R"([{"match": "*.bias", "weight_decy": 0}])"),
              HasSubstr("did you mean weight_decay?"));
  EXPECT_THAT(refused(R"([{"match": "*", "lr": 1}, {"match": "*", "lr": -1}])"),
              ContainsRegex("optimizer.groups\\[1\\].lr.*at least 0"));
  EXPECT_THAT(refused(R"([{"match": 3, "lr": 1}])"),
              HasSubstr("optimizer.groups[0].match must be"));
  EXPECT_THAT(refused(R"([{"match": [], "lr": 1}])"), HasSubstr("needs match"));
  std::string many;
  for (int i = 0; i < 257; ++i) many += std::string(i == 0 ? "" : ",") + R"({"match":"*","lr":1})";
  EXPECT_THAT(refused("[" + many + "]"), HasSubstr("more than 256 patterns"));
}

TEST(ParameterGroups, AreStoredAndWhatChangedInThemIsSaid) {
  const std::string text =
      run_file(R"([{"match": "*.bias", "lr": 0.1}, {"match": ["*wte*", "*wpe*"], "lr": 0.2}])");
  const Config was = accepted(resolve_run(to_json(accepted(resolve_run(text)).config))).config;
  Config now = was;
  EXPECT_EQ(now.optimizer.groups.size(), 2U);
  EXPECT_TRUE(changed_keys(was, now).empty());
  now.optimizer.groups[1].learning_rate = 0.25;
  auto changes = changed_keys(was, now);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(to_text(changes[0]),
            R"(optimizer.groups[1] was {"match":["*wte*","*wpe*"],"lr":0.2} and is )"
            R"({"match":["*wte*","*wpe*"],"lr":0.25})");
  EXPECT_TRUE(decides_results(changes[0].path));
  now.optimizer.groups.pop_back();
  EXPECT_EQ(changed_keys(was, now).front().path, "optimizer.groups");
}

// If a schedule gives rates, a group's rate is a share of them.
TEST(ParameterGroups, NeedALearningRateThatASchedulesRatesAreScaledBy) {
  const char* const group = R"([{"match": "*.bias", "lr": 0.1}])";
  const auto with = [&](std::vector<std::string> overrides) {
    return resolve_run(run_file(group), std::move(overrides));
  };
  EXPECT_THAT(refusal(with({"optimizer.params.lr=0", "scheduler.type=WarmupLR",
                            "scheduler.params.warmup_max_lr=0.1"})),
              HasSubstr("lr / optimizer.params.lr"));
  accepted(with({"scheduler.type=WarmupLR"}));
  accepted(with({"optimizer.params.lr=0", "scheduler.type=cosine"}));
}

TEST(ClippingByValue, StandsInPlaceOfTheNorm) {
  const auto with = [](std::vector<std::string> overrides) {
    overrides.emplace_back("gradient_clipping_value=0.5");
    return resolve_run(R"({"train_batch_size": 8})", std::move(overrides));
  };
  const Resolved made = accepted(with({}));
  EXPECT_EQ(made.config.gradient_clipping_value, 0.5);
  EXPECT_EQ(made.config.gradient_clipping_norm, 0);
  EXPECT_THAT(refusal(with({"gradient_clipping=1"})), HasSubstr("gradient_clipping_value"));
  const Resolved by_auto = accepted(with({"gradient_clipping=auto"}));
  EXPECT_EQ(by_auto.config.gradient_clipping_norm, 0);
  EXPECT_THAT(report_on(by_auto, "gradient_clipping").reason, HasSubstr("is used instead"));
  EXPECT_EQ(accepted(resolve_run(R"({"train_batch_size": 8, "gradient_clipping": "auto"})"))
                .config.gradient_clipping_norm,
            1);
}

}  // namespace
}  // namespace sluice::config
