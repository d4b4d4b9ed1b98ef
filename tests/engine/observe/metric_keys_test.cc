#include "engine/observe/metric_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/observe/step_metrics.h"

namespace sluice::engine {
namespace {

TEST(MetricKeys, DocumentEveryKeyOfALineInItsOrder) {
  std::vector<std::string> written = {"schema"};
  const StepMetrics metrics;
  for_each_metric(metrics, [&](const char* name, const auto&) { written.emplace_back(name); });
  std::vector<std::string> documented;
  for (const MetricKey& key : metric_keys()) documented.emplace_back(key.name);
  EXPECT_EQ(documented, written);
}

TEST(MetricKeys, SayUnitAndMeaningAndWhenTheKeyIsThere) {
  const std::set<std::string_view> units = {
      "", "tokens", "s", "nats per token", "tokens/s", "ms", "bytes", "TFLOP/s", "%", "W"};
  for (const auto keys : {metric_keys(), event_keys()}) {
    for (const MetricKey& key : keys) {
      EXPECT_TRUE(units.contains(key.unit)) << key.name;
      EXPECT_FALSE(key.when.empty()) << key.name;
      EXPECT_FALSE(key.meaning.empty()) << key.name;
      if (key.name.ends_with("_bytes")) {
        EXPECT_EQ(key.unit, "bytes") << key.name;
      }
      if (key.name.ends_with("_ms")) {
        EXPECT_EQ(key.unit, "ms") << key.name;
      }
    }
  }
}

TEST(MetricKeys, AreOneJsonObjectAsWell) {
  const auto json = nlohmann::json::parse(metrics_json());
  EXPECT_EQ(json["metrics"]["schema"], kMetricsSchema);
  EXPECT_EQ(json["metrics"]["keys"].size(), metric_keys().size());
  EXPECT_EQ(json["events"]["keys"].size(), event_keys().size());
  EXPECT_EQ(json["metrics"]["keys"][1]["name"], "step");
}

TEST(MetricKeys, AreWhatThePageSays) {
  std::ifstream file(SLUICE_SOURCE_DIR "/engine/observe/METRICS.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(page, metrics_page())
      << "engine/observe/METRICS.md is made by: sluice metrics --keys --markdown";
}

}  // namespace
}  // namespace sluice::engine
