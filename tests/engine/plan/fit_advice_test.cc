// The advice of a plan that lacks room on NVMe suffices, and does not ask for more than needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/plan/report/plan_report.h"
#include "tests/engine/plan/two_paths_under_test.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr double kRoomPart = 0.95;  // usable share of the free space

std::string refusal(const config::Config& config, const Rooms& rooms) {
  const RunPlan plan = plan_on(config, rooms);
  EXPECT_FALSE(plan.placement.fits);
  return does_not_fit(config, plan);
}

double needed_gib(const RunPlan& plan) {
  for (const offload::FitHint& hint : plan.hints) {
    if (hint.change == offload::FitHint::Change::kMoreNvme)
      return static_cast<double>(plan.input.budget.nvme + hint.more_bytes) / kGiB;
  }
  ADD_FAILURE() << "more space on NVMe is no hint";
  return 0;
}

TEST(NvmeHint, NamesThePathsThatAreFullAndWhatTheyWouldTake) {
  for (const std::vector<std::string>& weights :
       {std::vector<std::string>{}, {"placement.nvme_weights=equal"}}) {
    const config::Config config = over_two_paths(weights);
    const RunPlan plan = plan_on(config, {.fast_gib = 4, .slow_gib = 5});
    ASSERT_FALSE(plan.placement.fits);
    const double each_gib = needed_gib(plan) / 2;
    EXPECT_THAT(
        does_not_fit(config, plan),
        AllOf(ContainsRegex("/fast.*3.80G of the 7."), ContainsRegex("/slow.*4.75G of the 7."),
              HasSubstr("free some space"), HasSubstr("add a path"),
              Not(HasSubstr("from budget.nvme_paths")), Not(HasSubstr("budget.nvme_gib"))));
    // That suffices, and is not much more than needed.
    const auto with_each = [&](double gib) {
      return plan_on(config, {.fast_gib = gib / kRoomPart, .slow_gib = gib / kRoomPart});
    };
    EXPECT_TRUE(with_each(each_gib + 0.001).placement.fits);
    EXPECT_FALSE(with_each(each_gib - 0.1).placement.fits);
  }
}

TEST(NvmeHint, TakesOutAPathThatOnlyHindersTheOthers) {
  const Rooms rooms{.fast_gib = 0, .slow_gib = 100};
  EXPECT_THAT(refusal(over_two_paths(), rooms),
              AllOf(ContainsRegex("/fast.*0 of the 7."), Not(HasSubstr("/slow has")),
                    HasSubstr("remove /fast from budget.nvme_paths")));
  EXPECT_TRUE(plan_on(over_two_paths({R"(budget.nvme_paths=["/slow"])"}), rooms).placement.fits);
}

// A budget is larger than the drives' room, so the drives are checked first.
TEST(NvmeHint, RaisesABudgetOnlyWithWhatTheDrivesThenLack) {
  const auto budget = [](const std::string& weights) {
    return over_two_paths({"budget.nvme_gib=5", "placement.nvme_weights=" + weights});
  };
  const std::string raised = "budget.nvme_gib 14.";
  const std::string automatic = "placement.nvme_weights \"auto\"";
  const Rooms much{.fast_gib = 100, .slow_gib = 100};
  const Rooms little_on_one{.fast_gib = 4, .slow_gib = 100};
  const Rooms little{.fast_gib = 4, .slow_gib = 5};
  EXPECT_THAT(refusal(budget("[1,1]"), much),
              AllOf(HasSubstr(raised), Not(HasSubstr("nvme_weights")), Not(HasSubstr("has room"))));
  EXPECT_THAT(refusal(budget("[1,1]"), little_on_one),
              AllOf(HasSubstr(raised), HasSubstr(" and " + automatic)));
  EXPECT_THAT(refusal(budget("auto"), little_on_one),
              AllOf(HasSubstr(raised), Not(HasSubstr("nvme_weights")), Not(HasSubstr("has room"))));
  EXPECT_THAT(refusal(budget("auto"), little),
              AllOf(HasSubstr(raised), ContainsRegex("NVMe \\(/fast.*3.80G")));
}

TEST(NvmeHint, NamesBothPathsOfOneStoreEach) {
  const config::Config config =
      planned_config({"budget.nvme_paths=[]", "zero_optimization.offload_optimizer.device=nvme",
                      "zero_optimization.offload_param.device=nvme",
                      "zero_optimization.offload_optimizer.nvme_path=/fast",
                      "zero_optimization.offload_param.nvme_path=/slow"});
  EXPECT_THAT(refusal(config, {.fast_gib = 4, .slow_gib = 5}),
              AllOf(ContainsRegex("/fast.*3.80G"), ContainsRegex("/slow.*4.75G"),
                    HasSubstr("budget.nvme_paths to folders"), Not(HasSubstr("budget.nvme_gib"))));
}

TEST(NvmeHint, NamesTheOnlyPath) {
  EXPECT_THAT(refusal(over_two_paths({R"(budget.nvme_paths=["/slow"])"}), {.slow_gib = 0}),
              AllOf(ContainsRegex("/slow.*0 of the 14."), HasSubstr("add a path"),
                    Not(HasSubstr("from budget.nvme_paths"))));
}

}  // namespace
}  // namespace sluice::engine
