#include <gmock/gmock.h>

#include "engine/probe/probe_report.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;

// Paths with these bytes per second for reads and writes, each alone.
ProbeReport measured(const std::vector<double>& speeds) {
  ProbeReport report;
  for (const double speed : speeds) {
    report.paths.push_back({.rates = {.in_bytes_per_s = speed,
                                      .out_bytes_per_s = speed,
                                      .in_both_bytes_per_s = speed / 2,
                                      .out_both_bytes_per_s = speed / 2}});
  }
  return report;
}

template <typename Member>
std::vector<int> all(const ProbeReport& report, Member member) {
  std::vector<int> values;
  for (const ProbedPath& path : report.paths) values.push_back(path.*member);
  return values;
}

TEST(WeighPaths, GivesEachWhatItDoes) {
  ProbeReport report = measured({6e9, 2e9, 4e9});
  weigh_paths(std::nullopt, report);
  EXPECT_THAT(all(report, &ProbedPath::weight), ElementsAre(3, 1, 2));
}

TEST(WeighPaths, GivesPathsOfOneDriveTheirPartsOfIt) {
  ProbeReport report = measured({6e9, 6e9, 6e9});
  count_sharers({"259:0", "259:1", "259:0"}, report.paths);
  EXPECT_THAT(all(report, &ProbedPath::sharers), ElementsAre(2, 1, 2));
  weigh_paths(std::nullopt, report);
  EXPECT_THAT(all(report, &ProbedPath::weight), ElementsAre(1, 2, 1));
}

TEST(WeighPaths, TakesDrivesWithoutANameForDifferentOnes) {
  ProbeReport report = measured({6e9, 6e9});
  count_sharers({"", ""}, report.paths);
  EXPECT_THAT(all(report, &ProbedPath::sharers), ElementsAre(1, 1));
}

TEST(WeighPaths, TakesTheNamedOnesWhateverWasMeasured) {
  ProbeReport report = measured({6e9, 2e9});
  weigh_paths(std::vector<int>{1, 5}, report);
  EXPECT_THAT(all(report, &ProbedPath::weight), ElementsAre(1, 5));
  weigh_paths(std::vector<int>{}, report);
  EXPECT_THAT(all(report, &ProbedPath::weight), ElementsAre(1, 1));
}

}  // namespace
}  // namespace sluice::engine
