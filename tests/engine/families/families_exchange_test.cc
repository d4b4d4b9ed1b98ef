// Models of several families in checkpoints and folders: their numbers are part of their identity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "tests/engine/exchange/folder_under_test.h"
#include "tests/engine/families/data_families.h"

namespace sluice::engine {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

const bool kAdded = [] {
  add_data_families();
  return true;
}();

ModelShape ante() { return *preset_shape("ante-small"); }

json hugging_face(const json& changes = json::object()) {
  json config = {{"model_type", "ante"}, {"depth", 2},   {"width", 32}, {"heads", 4},
                 {"positions", 16},      {"tokens", 61}, {"inner", 96}};
  config.update(changes);
  return config;
}

class DescribedFamily : public FolderUnderTest {
 protected:
  std::string check(const std::string& weights, const ModelShape& wanted = ante()) const {
    const Status checked = check_described_model(queue(), path(weights), wanted);
    return checked.ok() ? "accepted" : checked.error().message();
  }
};

TEST_F(DescribedFamily, IsComparedByItsNumbersInAHuggingFaceFolder) {
  ASSERT_TRUE(kAdded);
  put("theirs/config.json", hugging_face());
  EXPECT_EQ(check("theirs"), "accepted");
  ModelShape other = ante();
  other.numbers["data_heads"] = 2;
  EXPECT_THAT(check("theirs", other),
              ContainsRegex("num_data_heads is 4.0.*2.0.*\\(model.data_heads\\)"));
  other = ante();
  other.numbers["data_theta"] = 500000;
  EXPECT_THAT(check("theirs", other),
              ContainsRegex("data_theta is 10000.0.*500000.0.*\\(model.data_theta\\)"));
  put("theirs/config.json", hugging_face({{"num_data_heads", 1}}));
  EXPECT_THAT(check("theirs"), HasSubstr("num_data_heads is 1.0 there"));
}

TEST_F(DescribedFamily, IsComparedByItsNumbersInARunsFolder) {
  put("run/config.json", json{{"model", {{"preset", "ante-small"}, {"layers", 2}}}});
  EXPECT_EQ(check("run"), "accepted");
  put("run/config.json", json{{"model", {{"preset", "ante-small"}, {"data_heads", 2.0}}}});
  EXPECT_THAT(check("run"), ContainsRegex("model.data_heads is 2.0.*4.0"));
  // A run's file names its family only if it differs from the preset's.
  put("run/config.json", json{{"model", {{"preset", "gpt2-small"}, {"layers", 2}}}});
  EXPECT_THAT(check("run"), HasSubstr("family gpt2"));
  put("run/config.json", json{{"model", {{"preset", "custom"}, {"family", "ante"}}}});
  EXPECT_EQ(check("run"), "accepted");
}

TEST(StoredFamily, IsCompletedWhereACheckpointLacksANumber) {
  StoredRun run;
  store_shape(ante(), run);
  EXPECT_EQ(run.family_numbers, ante().numbers);
  run.family_numbers.erase("data_theta");  // as if that number had been added later
  const auto shape = stored_shape(run);
  ASSERT_TRUE(shape.ok()) << shape.error().message();
  EXPECT_EQ(shape->numbers, ante().numbers);
  StoredRun now;
  store_shape(ante(), now);
  EXPECT_THAT(run_differences(complete(run), now), testing::IsEmpty());
  now.family_numbers["data_theta"] = 500000;
  EXPECT_THAT(run_differences(complete(run), now),
              testing::ElementsAre(ContainsRegex("data_theta is 500000.*10000")));
}

}  // namespace
}  // namespace sluice::engine
