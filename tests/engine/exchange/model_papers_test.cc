// What an export stores about a model: its base, how it generates, and its card.
#include <gmock/gmock.h>

#include "engine/exchange/base_model.h"
#include "engine/exchange/model_card.h"
#include "tests/engine/exchange/folder_under_test.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kCard = R"(---
# of the hub
license: apache-2.0  # theirs
license_link: "https://example.com/LICENSE"
tags:
- license: none
  license: none
---
license: mit
)";

class BaseModels : public FolderUnderTest {
 protected:
  BaseModel of(const std::string& weights) const {
    const auto base = base_model_of(queue(), path(weights));
    EXPECT_OK(base);
    return base.ok() ? *base : BaseModel();
  }
  std::string license_of(const std::string& card) const {
    put("theirs/config.json", json{{"model_type", "llama"}});
    put("theirs/README.md", card);
    return of("theirs").license;
  }
};

TEST_F(BaseModels, HaveTheFoldersNameAndTheLicenseOfItsCard) {
  put("Tiny-1B/config.json", json{{"model_type", "llama"}});
  put("Tiny-1B/model.safetensors", std::string("x"));
  put("Tiny-1B/README.md", std::string(kCard));
  put("Tiny-1B/generation_config.json", json{{"top_p", 0.5}});
  for (const char* const weights : {"Tiny-1B", "Tiny-1B/", "Tiny-1B/model.safetensors"}) {
    const BaseModel base = of(weights);
    EXPECT_EQ(base.name, "Tiny-1B") << weights;
    EXPECT_EQ(base.folder, path("Tiny-1B")) << weights;
    EXPECT_EQ(base.license, "apache-2.0");
    EXPECT_EQ(base.license_link, "https://example.com/LICENSE");
    EXPECT_EQ(json::parse(base.generation_config), json({{"top_p", 0.5}}));
  }
}

TEST_F(BaseModels, TakeALicenseOnlyWhereItIsPlain) {
  EXPECT_EQ(license_of("---\r\nlicense:   'a: b'\r\n---\r\n"), "a: b");
  for (const char* const card :
       {"", "license: mit\n", "---\nlicense: mit\n", "---\nlicense:\n- mit\n---\n",
        "---\nlicense: [mit]\n---\n", "---\n  license: mit\n---\n", "---\nlicense: \"mit\n---\n",
        "--- license: mit ---\n", "---\nlicense: |\n  mit\n---\n"})
    EXPECT_EQ(license_of(card), "") << card;
}

TEST_F(BaseModels, OfAHubsCacheHaveTheHubsName) {
  put("hub/models--some-one--Model--7B/snapshots/0a/config.json", json{{"model_type", "llama"}});
  const BaseModel base = of("hub/models--some-one--Model--7B/snapshots/0a");
  EXPECT_EQ(base.name, "some-one/Model--7B");
  EXPECT_EQ(base.revision, "0a");
}

TEST_F(BaseModels, AreNotKnownOfWeightsAlone) {
  put("alone/model.safetensors", std::string("x"));
  EXPECT_EQ(of("alone/model.safetensors"), BaseModel());
  put("run/config.json", json{{"model", {{"layers", 2}}}});  // a run's folder
  EXPECT_EQ(of("run"), BaseModel());
}

TEST_F(BaseModels, AreKeptByARunAndPassedOn) {
  put("Tiny-1B/config.json", json{{"model_type", "llama"}});
  put("Tiny-1B/README.md", std::string(kCard));
  put("Tiny-1B/generation_config.json", json{{"top_p", 0.5}, {"eos_token_id", {1, 2}}});
  const BaseModel base = of("Tiny-1B");
  put("run/checkpoints/step-000000002/checkpoint.json", json::object());
  ASSERT_OK(keep_base_model(queue(), base, path("run")));
  std::filesystem::remove_all(path("Tiny-1B"));
  auto kept = kept_base_model(queue(), path("run"));
  ASSERT_OK(kept);
  EXPECT_EQ(json::parse(kept->generation_config), json::parse(base.generation_config));
  kept->generation_config = base.generation_config;
  EXPECT_EQ(*kept, base);
  EXPECT_EQ(of("run/checkpoints/step-000000002").name, "Tiny-1B");
  const auto of_run = base_model_of_run(queue(), "", path("run"));
  ASSERT_OK(of_run);
  EXPECT_EQ(of_run->license, "apache-2.0");
  put("run/base_model.json", std::string("oops"));
  const auto damaged = kept_base_model(queue(), path("run"));
  ASSERT_FALSE(damaged.ok());
  EXPECT_THAT(damaged.error().message(), HasSubstr("base_model.json does not say"));
  ASSERT_OK(keep_base_model(queue(), BaseModel(), path("other")));
  EXPECT_FALSE(there("other"));
}

TEST_F(BaseModels, SayWhatOfThemIsLeftOut) {
  put("Seeing-1B/config.json",
      json{{"model_type", "qwen3_5"}, {"text_config", json::object()}, {"vision_config", 1}});
  const BaseModel base = of("Seeing-1B");
  ASSERT_EQ(base.notes.size(), 1U);
  EXPECT_THAT(base.notes[0], HasSubstr("vision encoder"));
  put("run/x", std::string());
  ASSERT_OK(keep_base_model(queue(), base, path("run")));
  const auto kept = kept_base_model(queue(), path("run"));
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, base);
  EXPECT_THAT(model_card_text({.name = "mine", .base = *kept}), HasSubstr(base.notes[0] + "."));
  put("run/base_model.json", json{{"folder", "x"}, {"notes", {1, "so"}}});  // by another program
  EXPECT_EQ(kept_base_model(queue(), path("run"))->notes, std::vector<std::string>{"so"});
}

TEST_F(BaseModels, SettingsOfGenerationAreAddedAndTokensAreNot) {
  const BaseModel base{.folder = "x", .generation_config = R"({"top_p": 0.5, "temperature": 0.25,
                         "eos_token_id": 99, "_from_model_config": true})"};
  put("out/generation_config.json", json{{"eos_token_id", 7}, {"temperature", 0.75}});
  ASSERT_OK(complete_generation_config(queue(), base, path("out")));
  EXPECT_EQ(get("out/generation_config.json"),
            json({{"eos_token_id", 7}, {"temperature", 0.75}, {"top_p", 0.5}}));
  put("none/x", std::string());
  ASSERT_OK(complete_generation_config(queue(), {}, path("none")));
  EXPECT_EQ(get("none/generation_config.json"), json({{"_from_model_config", true}}));
}

ModelCard trained_card() {
  ModelCard card{
      .name = "mine",
      .shape = {.layers = 3, .hidden = 48, .heads = 4, .context_tokens = 96, .vocab = 257},
      .parameters = 12345,
      .dtype = DType::kBF16};
  card.shape.family = "llama";
  card.state.position = {.global_step = 10, .applied_step = 9, .samples_drawn = 80};
  card.state.run.precision = "bf16";
  card.state.loss = 2.5;
  card.state.validation_loss = 2;
  card.state.program_version = "0.0.1";
  card.state.configuration =
      json{{"train_batch_size", 8},
           {"train_micro_batch_size_per_gpu", 2},
           {"gradient_accumulation_steps", 4},
           {"gradient_clipping", 0.5},
           {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}, {"betas", {0.9, 0.95}}}}}},
           {"data", {{"sequence_length", 64}}}}
          .dump();
  return card;
}

TEST(ModelCards, SayWhatAdaptersAreAndWhatTheyBelongTo) {
  ModelCard card = trained_card();
  card.base = {.name = "some/Model", .folder = "/models/x", .license = "mit"};
  card.lora = {.rank = 16, .alpha = 32, .base_bits = 16, .targets = {"q_proj", "v_proj"}};
  const std::string adapters = model_card_text(card);
  for (const char* const part :
       {"base_model: \"some/Model\"\nbase_model_relation: adapter\nlibrary_name: peft\n",
        "- lora\n", "LoRA adapters (rank 16, alpha 32, beside q_proj, v_proj; 12345 parameters)",
        "for `some/Model`", "from peft import AutoPeftModelForCausalLM"})
    EXPECT_THAT(adapters, testing::HasSubstr(part));
  card.lora.base_bits = 8;
  EXPECT_THAT(model_card_text(card),
              testing::HasSubstr("beside q_proj, v_proj, which had 8 bits in training; 12345"));
  card.merged = true;
  const std::string merged = model_card_text(card);
  EXPECT_THAT(merged, testing::HasSubstr("library_name: transformers\n"));
  EXPECT_THAT(merged, testing::HasSubstr("- LoRA, merged: rank 16, alpha 32, beside q_proj"));
  EXPECT_THAT(merged, testing::Not(testing::HasSubstr("peft")));
}

TEST(ModelCards, SayWhatTheCheckpointSays) {
  ModelCard card = trained_card();
  card.training = {
      {.path = "/home/me/sft/train.bin", .tokens = 5000, .documents = 40, .trained_tokens = 700},
      {.path = "gone.bin"}};
  card.base = {.name = "some/Model", .folder = "/models/x", .license = "mit"};
  const std::string text = model_card_text(card);
  EXPECT_THAT(text, testing::StartsWith("---\nbase_model: \"some/Model\"\nlibrary_name: "
                                        "transformers\nlicense: \"mit\"\n"));
  for (const char* const part :
       {"12345 parameters (3 layers of width 48, a vocabulary of 257, a context of 96 tokens)",
        ", trained from `some/Model`",
        "- training data: `sft/train.bin`, 5000 tokens in 40 documents; 700 tokens are trained on",
        "- training data: `gone.bin`\n", "- steps: 10, of which 9 changed the weights\n",
        "- tokens seen: 5120 (80 sequences,", "- batch: 8 sequences of 64 tokens (4 x 2)\n",
        "- optimizer: AdamW (betas [0.9,0.95], lr 0.001)\n", "- learning rate schedule: constant\n",
        "- gradient clipping: 0.5\n", "- precision: bf16\n",
        "- training loss of the last step: 2.5\n",
        "- last evaluation loss: 2 (perplexity 7.38906)\n", "Weights are stored as BF16.",
        "from a checkpoint of Sluice 0.0.1"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("/home/me")), Not(HasSubstr("AutoTokenizer"))));
}

TEST(ModelCards, SayWhatSetsAGpt2Apart) {
  ModelCard card = trained_card();
  card.shape.family = "gpt2";
  card.shape.numbers = {{"activation", 0}, {"tied_head", 1}};
  EXPECT_THAT(model_card_text(card), HasSubstr("a context of 96 tokens), trained"));
  card.shape.numbers = {{"activation", 2}, {"norm_epsilon", 1e-6}, {"tied_head", 0}};
  EXPECT_THAT(model_card_text(card),
              HasSubstr("a context of 96 tokens; activation relu, norm_epsilon 1e-06, tied_head "
                        "false), trained"));
}

TEST(ModelCards, LeaveOutWhatIsNotKnown) {
  ModelCard card = trained_card();
  card.state.configuration = "of another version";
  card.state.loss.reset();
  card.state.validation_loss.reset();
  card.has_tokenizer = true;
  const std::string text = model_card_text(card);
  EXPECT_THAT(text, AllOf(HasSubstr("trained from random weights"), HasSubstr("AutoTokenizer"),
                          HasSubstr("- steps: 10,"), Not(HasSubstr("loss")),
                          Not(HasSubstr("batch")), Not(HasSubstr("license"))));
}

TEST(ModelCards, NoNameBreaksTheirForm) {
  ModelCard card = trained_card();
  card.training = {{.path = "a`b\n# c/x`y.bin", .tokens = 1}};
  card.base = {.name = "evil\n---\nlicense: mit", .folder = "x", .license = "a\"b"};
  const std::string text = model_card_text(card);
  EXPECT_THAT(text, HasSubstr("base_model: \"evil\\n---\\nlicense: mit\"\n"));
  EXPECT_THAT(text, HasSubstr("license: \"a\\\"b\"\n"));
  EXPECT_THAT(text, HasSubstr("`a?b?# c/x?y.bin`"));
  EXPECT_THAT(text, HasSubstr("trained from `evil?---?license: mit`"));
}

}  // namespace
}  // namespace sluice::engine
