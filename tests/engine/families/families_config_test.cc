// Configurations of models of several families: keys, defaults, rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/key_table.h"
#include "engine/config/resolve.h"
#include "engine/families/families.h"
#include "tests/engine/config/resolving.h"
#include "tests/engine/families/data_families.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const bool kAdded = [] {
  engine::add_data_families();
  return true;
}();

std::string run_of(const std::string& model) {
  return R"({"train_batch_size": 8, "model": {)" + model + "}}";
}
Resolved resolved_of(const std::string& model) { return accepted(resolve_run(run_of(model))); }
engine::ModelShape shape_of(const std::string& model) {
  return resolved_of(model).config.model.shape();
}
std::string refusal_of(const std::string& model) { return refusal(resolve_run(run_of(model))); }

constexpr const char* kAnte = R"("preset": "ante-small")";
constexpr const char* kBellum =
    R"("preset": "custom", "family": "bellum", "layers": 2, "hidden": 10, "heads": 4,
       "context": 16, "vocab": 61)";

std::string with(const std::string& model, const std::string& more) { return model + ", " + more; }

TEST(FamiliesInConfigurations, ShareTheRowOfAKey) {
  ASSERT_TRUE(kAdded);
  int rows = 0;
  for (const Key& key : all_keys()) rows += key.path == "model.data_heads" ? 1 : 0;
  EXPECT_EQ(rows, 1);
  EXPECT_EQ(find_key("model.data_heads")->families, "ante|bellum");
  EXPECT_THAT(describe_keys(), HasSubstr("ante or bellum"));

  EXPECT_EQ(shape_of(kAnte).numbers.at("data_heads"), 4);
  EXPECT_EQ(shape_of(kBellum).numbers.at("data_heads"), 2);
  EXPECT_EQ(shape_of(with(kAnte, R"("data_heads": 8)")).numbers.at("data_heads"), 8);
  EXPECT_EQ(shape_of(with(kBellum, R"("data_heads": 64)")).numbers.at("data_heads"), 64);
  EXPECT_THAT(to_json(resolved_of(with(kBellum, R"("data_heads": 6)")).config),
              AllOf(HasSubstr(R"("data_heads": 6.0)"), Not(HasSubstr("data_theta"))));
}

TEST(FamiliesInConfigurations, RefuseAKeyOfOthersAndWhatIsOutOfTheirOwnRange) {
  EXPECT_THAT(refusal_of(R"("data_heads": 4)"),
              ContainsRegex("model.data_heads.*ante or bellum.*gpt2"));
  EXPECT_THAT(refusal_of(with(kBellum, R"("data_theta": 100)")),
              ContainsRegex("model.data_theta.*family ante.*bellum"));
  EXPECT_THAT(refusal_of(with(kAnte, R"("data_heads": 9)")),
              ContainsRegex("data_heads.*at most 8"));
  EXPECT_THAT(refusal_of(with(kBellum, R"("data_heads": 1)")),
              ContainsRegex("data_heads.*at least 2"));
  EXPECT_THAT(refusal_of(with(kBellum, R"("data_heads": 65)")), HasSubstr("at most 64"));
}

TEST(FamiliesInConfigurations, HaveThePresetsDropoutAndFeedForwardLayerOrTheirOwn) {
  const engine::ModelShape ante = shape_of(kAnte);
  EXPECT_EQ(ante.dropout, 0.25);
  EXPECT_EQ(ante.ffn(), 96);
  EXPECT_EQ(shape_of(with(kAnte, R"("hidden": 64)")).ffn(), 192);
  const engine::ModelShape given = shape_of(with(kAnte, R"("dropout": 0, "ffn_multiplier": 0.5)"));
  EXPECT_EQ(given.dropout, 0);
  EXPECT_EQ(given.ffn(), 16);
  // Hugging Face's files may have any width.
  EXPECT_EQ(shape_of(with(kAnte, R"("hidden": 64, "ffn_multiplier": 2000)")).ffn(), 128000);
  EXPECT_EQ(shape_of(with(kAnte, R"("hidden": 640, "ffn_multiplier": 0.0015625)")).ffn(), 1);
  const engine::ModelShape bellum = shape_of(kBellum);
  EXPECT_EQ(bellum.dropout, 0);
  EXPECT_EQ(bellum.ffn(), 25);
  const engine::ModelShape gpt2 = shape_of(
      R"("preset": "custom", "layers": 2, "hidden": 8, "heads": 4, "context": 16, "vocab": 61)");
  EXPECT_EQ(gpt2.dropout, 0.1);
  EXPECT_EQ(gpt2.ffn(), 32);
  EXPECT_THAT(report_on(resolved_of(kAnte), "model.dropout").reason, HasSubstr("model.preset"));
  EXPECT_THAT(report_on(resolved_of(kBellum), "model.dropout").reason, HasSubstr("the family's"));
  // The stored form has the value, even if a later version's preset changes.
  EXPECT_THAT(to_json(resolved_of(kAnte).config), HasSubstr(R"("dropout": 0.25)"));
}

TEST(FamiliesInConfigurations, SayHowTheirHeadsAreSized) {
  EXPECT_EQ(shape_of(kBellum).hidden % shape_of(kBellum).heads, 2);
  EXPECT_THAT(refusal_of(with(kBellum, R"("head_size": 7)")), HasSubstr("head_size is even"));
  EXPECT_THAT(refusal_of(with(kAnte, R"("heads": 5)")), HasSubstr("multiple of its"));
}

}  // namespace
}  // namespace sluice::config
