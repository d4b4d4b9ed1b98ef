// The model and the adapters of a configuration.
#include "engine/config/report.h"
#include "engine/config/resolve.h"
#include "engine/families/families.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(ResolveConfig, PresetsGiveAShapeThatKeysChange) {
  const auto model = [](const std::string& text) {
    return accepted(resolve_run(run_with(R"("model": {)" + text + "}"))).config.model;
  };
  const Model xl = model(R"("preset": "gpt2-xl")");
  EXPECT_EQ(xl.layers, 48);
  EXPECT_EQ(xl.hidden, 1600);
  EXPECT_EQ(xl.heads, 25);
  EXPECT_EQ(xl.context_tokens, 1024);
  EXPECT_EQ(xl.vocab, 50257);
  EXPECT_EQ(xl.ffn_hidden(), 6400);
  const Model lite = model(R"("preset": "gpt-lite", "layers": 3)");
  EXPECT_EQ(lite.layers, 3);
  EXPECT_EQ(lite.hidden, 768);
  EXPECT_EQ(lite.context_tokens, 2048);
  EXPECT_EQ(lite.dropout, 0.1);
}

TEST(ResolveConfig, KnowsEveryPresetByTheNameInTheList) {
  for (const engine::NamedShape& it : engine::model_presets()) {
    const std::string section = R"("model": {"preset": ")" + std::string(it.name) + "\"}";
    const Model model = accepted(resolve_run(run_with(section))).config.model;
    EXPECT_EQ(model.preset, it.name) << it.name;
    EXPECT_EQ(model.family, it.shape.family) << it.name;
    EXPECT_EQ(model.layers, it.shape.layers) << it.name;
    EXPECT_EQ(model.context_tokens, it.shape.context_tokens) << it.name;
    EXPECT_EQ(model.vocab, it.shape.vocab) << it.name;
  }
}

TEST(ResolveConfig, RefusesShapesThatCannotBeBuilt) {
  EXPECT_THAT(refusal(resolve_run(run_with(R"("model": {"heads": 7})"))),
              ContainsRegex("hidden 768.*7 heads"));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("model": {"preset": "custom", "layers": 2})"))),
              AllOf(HasSubstr("model.hidden must be given"), Not(HasSubstr("model.layers has"))));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("data": {"sequence_length": 2000})"))),
              HasSubstr("longer than model.context 1024"));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("model": {"preset": "gpt2-xxl"})"))),
              HasSubstr("did you mean \"gpt2-xl\"?"));
}

// The default preset is a GPT-2's, which a file of another family does not mean.
TEST(ResolveConfig, KeysOfAFamilyNameIt) {
  constexpr const char* kSizes =
      R"("layers": 2, "hidden": 64, "heads": 4, "context": 64, "vocab": 61)";
  const auto file = [&](const std::string& more) {
    return run_with("\"model\": {" + more + kSizes + "}");
  };
  for (const char* const more : {R"("family": "llama", )", R"("architecture": "qwen3", )",
                                 R"("kv_heads": 2, )", R"("preset": "custom", "rope_theta": 100, )",
                                 R"("preset": "custom", "family": "llama", )"}) {
    const Model model = accepted(resolve_run(file(more))).config.model;
    EXPECT_EQ(model.family, "llama") << more;
    EXPECT_EQ(model.preset, kCustomPreset) << more;
    EXPECT_EQ(model.ffn_hidden(), 224) << more;
  }
  const Model plain = accepted(resolve_run(file(""))).config.model;
  EXPECT_EQ(plain.family, "gpt2");
  EXPECT_EQ(plain.preset, "gpt2-small");
  EXPECT_EQ(accepted(resolve_run(file(R"("activation": "relu", )"))).config.model.family, "gpt2");
  EXPECT_THAT(refusal(resolve_run(file(R"("activation": "relu", "kv_heads": 2, )"))),
              HasSubstr("model.kv_heads belongs to models of the family llama"));
  // Without all sizes it is the default preset, changed.
  EXPECT_THAT(refusal(resolve_run(run_with(R"("model": {"architecture": "qwen3", "layers": 2})"))),
              HasSubstr("model.architecture belongs to models of the family llama"));
}

TEST(ResolveConfig, ExpertsAreKeysOfTheirArchitectures) {
  const auto file = [](const std::string& more, const std::string& preset = "qwen3-30b-a3b") {
    return run_with(R"("model": {"preset": ")" + preset + "\"" + more + "}");
  };
  const Model model = accepted(resolve_run(file(R"(, "experts": 16, "layers": 2)"))).config.model;
  EXPECT_EQ(model.numbers.at("experts"), 16);
  EXPECT_EQ(model.numbers.at("experts_per_token"), 8);
  EXPECT_EQ(model.numbers.at("expert_width"), 768);
  EXPECT_EQ(model.numbers.at("norm_topk_prob"), 1);
  EXPECT_THAT(refusal(resolve_run(file(R"(, "experts": 4)"))),
              AllOf(HasSubstr("experts_per_token is 8"), HasSubstr("4 experts")));
  EXPECT_THAT(
      refusal(resolve_run(file(R"(, "experts": 4)", "qwen3-0.6b"))),
      HasSubstr("experts is for the architecture mixtral, gpt_oss or qwen3_moe; qwen3 does not"));
  EXPECT_THAT(refusal(resolve_run(file(R"(, "experts": 2.5)"))), HasSubstr("experts"));
  // What dense models write stays as it was.
  EXPECT_THAT(to_json(accepted(resolve_run(file("", "qwen3-0.6b"))).config),
              Not(HasSubstr("expert")));
  EXPECT_THAT(to_json(accepted(resolve_run(file(R"(, "experts": 16)"))).config),
              HasSubstr("\"experts\": 16"));
}

TEST(ResolveConfig, AdaptersOfAModelWithExpertsAreAttentions) {
  const auto file = [](const std::string& lora) {
    return run_with(R"("model": {"preset": "qwen3-30b-a3b"}, "recipe": {"lora": {)" + lora + "}}");
  };
  for (const char* const all : {R"("rank": 4)", R"("rank": 4, "targets": ["all-linear"])"})
    EXPECT_THAT(accepted(resolve_run(file(all))).config.lora.targets,
                testing::ElementsAre("q_proj", "k_proj", "v_proj", "o_proj"));
  for (const char* const target : {"gate_proj", "up_proj", "down_proj"})
    EXPECT_THAT(refusal(resolve_run(
                    file(R"("rank": 4, "targets": ["q_proj", ")" + std::string(target) + "\"]"))),
                AllOf(HasSubstr(target), HasSubstr("model with experts")));
}

TEST(ResolveConfig, ASharedExpertHasAdapters) {
  const auto file = [](const std::string& lora) {
    return run_with(R"("model": {"preset": "qwen3.5-35b-a3b"}, "recipe": {"lora": {)" + lora +
                    "}}");
  };
  const auto targets = accepted(resolve_run(file(R"("rank": 4)"))).config.lora.targets;
  EXPECT_THAT(targets, testing::IsSupersetOf({"q_proj", "in_proj_qkv", "up_proj", "down_proj"}));
  EXPECT_EQ(targets.back(), "shared_expert_gate");
  EXPECT_THAT(accepted(resolve_run(file(R"("rank": 4, "targets": ["up_proj", "q_proj"])")))
                  .config.lora.targets,
              testing::ElementsAre("q_proj", "up_proj"));
  EXPECT_THAT(refusal(resolve_run(file(R"("rank": 4, "targets": ["gate"])"))), HasSubstr("gate"));
}

TEST(ResolveConfig, AdaptersHaveAScaleAndTargetsOfTheirModel) {
  const auto file = [](const std::string& lora, const std::string& preset = "qwen3-0.6b") {
    return run_with(R"("model": {"preset": ")" + preset + R"("}, "recipe": {"lora": {)" + lora +
                    "}}");
  };
  const Resolved usual = accepted(resolve_run(file(R"("rank": 8)")));
  EXPECT_EQ(usual.config.lora.alpha, 16);
  EXPECT_THAT(usual.config.lora.targets,
              testing::ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                   "down_proj"));
  EXPECT_EQ(usual.config.lora.recipe().scale(), 2);
  // In the model's order, each once.
  const Config some = accepted(resolve_run(file(R"("rank": 4, "alpha": 6, "rank_stabilised": true,
                                   "targets": ["v_proj", "q_proj", "v_proj"])")))
                          .config;
  EXPECT_THAT(some.lora.targets, testing::ElementsAre("q_proj", "v_proj"));
  // With PEFT's key names.
  EXPECT_EQ(to_json(accepted(resolve_run(file(R"("r": 4, "lora_alpha": 6, "use_rslora": true,
                                   "lora_dropout": 0, "target_modules": ["v_proj", "q_proj"])")))
                        .config),
            to_json(some));
  EXPECT_EQ(some.lora.recipe().scale(), 3);
  const Config all = accepted(resolve_run(file(R"("rank": 4, "targets": "all-linear")"))).config;
  EXPECT_EQ(all.lora.targets, usual.config.lora.targets);
  EXPECT_THAT(refusal(resolve_run(file(R"("rank": 4, "targets": ["q_proj", "query"])"))),
              ContainsRegex("names query.*q_proj, k_proj"));
  EXPECT_THAT(refusal(resolve_run(file(R"("rank": 4)", "gpt2-small"))), HasSubstr("family gpt2"));
  // Without a rank other adapter keys are refused, and a run's own file has none of them.
  for (const char* const asked :
       {R"("alpha": 6)", R"("dropout": 0.1)", R"("base_bits": 8)", R"("double_quant": true)",
        R"("targets": "all-linear")", R"("rank_stabilised": true)"})
    EXPECT_THAT(refusal(resolve_run(file(asked))), HasSubstr("is given without recipe.lora.rank"))
        << asked;
  EXPECT_THAT(refusal(resolve_run(file(R"("adapter": "peft")"))),
              ContainsRegex("recipe.lora.adapter is peft.*adapter_config.json"));
  const Resolved none = accepted(resolve_run(file(R"("rank": 0, "alpha": 6, "adapter": "peft")")));
  EXPECT_EQ(none.config.lora.rank, 0);
  EXPECT_THAT(report_on(none, "recipe.lora.alpha").reason, HasSubstr("recipe.lora.rank is 0"));
  EXPECT_THAT(to_json(none.config), Not(HasSubstr("rank_stabilised")));
}

TEST(ResolveConfig, AModelThatIsRefusedHasNoFurtherReason) {
  Sources sources = {.run_file = Source{"run.json", run_with(R"("model": {"path": "hf"},
                                                 "recipe": {"lora": {"rank": 4}})")}};
  sources.facts.model = Source{"hf/config.json", R"({"model_type": "mamba"})"};
  EXPECT_THAT(refusal(resolve(sources)), AllOf(HasSubstr("mamba"), Not(HasSubstr("adapters"))));
}

TEST(ResolveConfig, AdaptersThatGoOnAreWhatTheyWere) {
  const auto resolved = [](const std::string& lora) {
    Sources sources = {.run_file = Source{"run.json", run_with(R"("model": {"preset": "qwen3-0.6b"},
                                                   "recipe": {"lora": {"adapter": "peft")" +
                                                               lora + "}}")}};
    sources.facts.adapter = engine::LoraRecipe{.rank = 3,
                                               .alpha = 5,
                                               .rank_stabilised = true,
                                               .dropout = 0.25,
                                               .targets = {"q_proj", "o_proj"}};
    return accepted(resolve(sources));
  };
  const Resolved as_it_was = resolved("");
  EXPECT_EQ(as_it_was.config.lora.rank, 3);
  EXPECT_EQ(as_it_was.config.lora.alpha, 5);
  EXPECT_TRUE(as_it_was.config.lora.rank_stabilised);
  EXPECT_EQ(as_it_was.config.lora.dropout, 0.25);
  EXPECT_THAT(as_it_was.config.lora.targets, testing::ElementsAre("q_proj", "o_proj"));
  EXPECT_EQ(as_it_was.config.lora.adapter, "peft");
  EXPECT_EQ(report_on(as_it_was, "recipe.lora.alpha").reason, "recipe.lora.adapter");
  const Resolved changed = resolved(R"(, "rank": 3, "dropout": 0)");
  EXPECT_EQ(changed.config.lora.alpha, 5);
  EXPECT_EQ(changed.config.lora.dropout, 0);
  // A run's own file is complete, so it asks no questions.
  const Resolved again = accepted(resolve_run(to_json(as_it_was.config)));
  EXPECT_FALSE(again.missing_facts.adapter);
  EXPECT_EQ(to_json(again.config), to_json(as_it_was.config));
}

}  // namespace
}  // namespace sluice::config
