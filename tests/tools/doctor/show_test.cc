#include "tools/doctor/show.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace sluice::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<Finding> findings() {
  return {{.key = "driver", .subject = "NVIDIA driver", .found = "580"},
          {.key = "memlock",
           .subject = "locked memory",
           .state = State::kLimited,
           .found = "8M (ulimit -l)",
           .cost = "Buffers beyond it are not registered, which takes more CPU time per byte.",
           .change = "ulimit -l unlimited.",
           .values = {{"limit_bytes", std::int64_t{8388608}}, {"applies", true}}},
          {.key = "path.0",
           .subject = "/a/folder/with/a/name/longer/than/the/column",
           .state = State::kNotPossible,
           .found = "a \x1b[31mname\nof a drive",
           .cost = "It is full.",
           .is_needed = true,
           .values = {{"speed", 1.5}, {"kind", std::string("NVMe")}}}};
}

TEST(DoctorTable, WrapsTextAndIndentsWhatItCosts) {
  const std::string table = table_of(findings(), {.columns = 64});
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 64U) << line;
  EXPECT_THAT(table, HasSubstr("good          NVIDIA driver  580\n"
                               "limited       locked memory  8M (ulimit -l)\n"
                               "                             Buffers beyond it are not\n"));
  EXPECT_THAT(table, HasSubstr("\n                             ulimit -l unlimited.\n"));
  EXPECT_THAT(table, HasSubstr("not possible  /a/folder/with/a/name/longer/than/the/column\n"
                               "                             a ?[31mname"));
}

TEST(DoctorTable, SaysOnceWhatSeveralLinesHaveInCommon) {
  auto all = findings();
  all.insert(all.begin() + 2, 2, all[1]);
  all[2].subject = all[3].subject = "another";
  const std::string table = table_of(all, {.columns = 200});
  EXPECT_EQ(table.find("not registered"), table.rfind("not registered"));
  EXPECT_THAT(table,
              HasSubstr("another        8M (ulimit -l)\n"
                        "                             The same as for locked memory above.\n"
                        "limited       another        8M (ulimit -l)\n"
                        "                             The same as for locked memory above.\n"));
}

TEST(DoctorTable, EndsWithWhatItComesTo) {
  auto all = findings();
  EXPECT_THAT(
      table_of(all, {.columns = 200}),
      HasSubstr("\n\nSomething that training needs is missing or broken (1 good, 1 limited, "
                "1 not possible). Mend first: /a/folder/with/a/name/longer/than/the/"
                "column.\n"));
  all.pop_back();
  EXPECT_THAT(table_of(all, {}), HasSubstr("\n\nTraining is possible on this machine (1 good, 1 "
                                           "limited, 0 not possible).\n"));
}

TEST(DoctorTable, HasColoursOnlyIfAskedFor) {
  EXPECT_THAT(table_of(findings(), {}), Not(HasSubstr("\033")));
  const std::string coloured = table_of(findings(), {.colours = true});
  EXPECT_THAT(coloured, HasSubstr("\033[32mgood\033[0m          NVIDIA driver"));
  EXPECT_THAT(coloured, HasSubstr("\033[33mlimited\033[0m       locked memory"));
  EXPECT_THAT(coloured, HasSubstr("\033[31mnot possible\033[0m  /a"));
}

TEST(DoctorJson, HasStableKeys) {
  const auto json = nlohmann::json::parse(json_of(findings(), "sluice 1"));
  EXPECT_EQ(json["version"], "sluice 1");
  EXPECT_EQ(json["possible"], false);
  ASSERT_EQ(json["lines"].size(), 3U);
  EXPECT_EQ(json["lines"][0]["state"], "good");
  const nlohmann::json expected = {
      {"key", "memlock"},
      {"subject", "locked memory"},
      {"state", "limited"},
      {"needed", false},
      {"found", "8M (ulimit -l)"},
      {"cost", "Buffers beyond it are not registered, which takes more CPU time per byte."},
      {"change", "ulimit -l unlimited."},
      {"values", {{"limit_bytes", 8388608}, {"applies", true}}}};
  EXPECT_EQ(json["lines"][1], expected);
  EXPECT_EQ(json["lines"][2]["state"], "not_possible");
  EXPECT_EQ(json["lines"][2]["needed"], true);
  EXPECT_EQ(json["lines"][2]["values"]["speed"], 1.5);
}

}  // namespace
}  // namespace sluice::doctor
