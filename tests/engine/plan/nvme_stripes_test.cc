// Plans over several NVMe paths that differ in speed or room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "aio/units.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "tests/engine/plan/two_paths_under_test.h"

namespace sluice::engine {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Like a probe's report: one drive has three times the speed, and together they lose some of it.
ProbeReport measured() {
  ProbeReport report;
  const auto rates = [](double bytes_per_s) {
    return offload::DuplexRates{.in_bytes_per_s = bytes_per_s,
                                .out_bytes_per_s = bytes_per_s,
                                .in_both_bytes_per_s = bytes_per_s / 2,
                                .out_both_bytes_per_s = bytes_per_s / 2};
  };
  report.paths = {{.path = "/fast", .rates = rates(6e9), .weight = 3},
                  {.path = "/slow", .rates = rates(2e9), .weight = 1}};
  report.speeds.drives = rates(7e9);
  return report;
}

TEST(NvmeStripes, AreThoseOfTheProbeUnlessTheConfigurationNamesThem) {
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = drives.folders["/slow"].free_bytes = 100 * kGiB;
  const NvmeStripes by_speed = nvme_stripes(over_two_paths(), measured(), &drives);
  EXPECT_THAT(by_speed.paths, ElementsAre("/fast", "/slow"));
  EXPECT_THAT(by_speed.weights, ElementsAre(3, 1));
  EXPECT_THAT(by_speed.chosen(), ElementsAre(3, 1));
  // The fast one fills up first, with three quarters of the data.
  EXPECT_NEAR(static_cast<double>(by_speed.room()) / kGiB, 95 * 4.0 / 3, 0.01);
  const auto weights = [&](const std::string& given, const ProbeReport& machine) {
    return nvme_stripes(over_two_paths({"placement.nvme_weights=" + given}), machine, &drives)
        .weights;
  };
  EXPECT_THAT(weights("[2,5]", measured()), ElementsAre(2, 5));
  EXPECT_THAT(weights("equal", measured()), ElementsAre(1, 1));
  EXPECT_THAT(weights("auto", ProbeReport{}), ElementsAre(1, 1));
}

TEST(NvmeStripes, HaveEqualPartsOfTheRoomOfOneFileSystem) {
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = drives.folders["/slow"].free_bytes = 100 * kGiB;
  const auto rooms_gib = [&](const FileSystemOf& file_system_of) {
    std::vector<double> rooms;
    for (const std::uint64_t bytes :
         nvme_stripes(over_two_paths(), {}, &drives, file_system_of).room_bytes)
      rooms.push_back(static_cast<double>(bytes) / kGiB);
    return rooms;
  };
  const auto are = [](double gib) {
    return ElementsAre(DoubleNear(gib, 1e-6), DoubleNear(gib, 1e-6));
  };
  EXPECT_THAT(rooms_gib([](const std::string&) { return "259:1"; }), are(47.5));
  EXPECT_THAT(rooms_gib([](const std::string& folder) { return folder; }), are(95));
  EXPECT_THAT(rooms_gib([](const std::string&) { return ""; }), are(95));
}

TEST(NvmeStripes, AreNoneOfTheTwoPathsThatDeepSpeedsKeysName) {
  const config::Config config =
      planned_config({"budget.nvme_paths=[]", "zero_optimization.offload_optimizer.nvme_path=/fast",
                      "zero_optimization.offload_param.nvme_path=/slow"});
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = 30 * kGiB;
  drives.folders["/slow"].free_bytes = 20 * kGiB;
  const NvmeStripes stripes = nvme_stripes(config, measured(), &drives);
  EXPECT_THAT(stripes.weights, ElementsAre(1, 1));
  EXPECT_THAT(stripes.chosen(), IsEmpty());
  EXPECT_FALSE(may_restripe(config, stripes));
  EXPECT_FALSE(roomier_weights(stripes, 48 * kGiB).has_value());
  // No store uses the other one's path.
  EXPECT_NEAR(static_cast<double>(stripes.room()) / kGiB, 0.95 * (30 + 20), 1e-6);
}

// The optimizer state, by far the larger part, goes to the path with more room: 11.6 of 14.5 GiB.
TEST(NvmeStripes, OfPathsThatAreNotStripedNeedNoEqualRoom) {
  const config::Config config =
      planned_config({"budget.nvme_paths=[]", "zero_optimization.offload_optimizer.device=nvme",
                      "zero_optimization.offload_param.device=nvme",
                      "zero_optimization.offload_optimizer.nvme_path=/fast",
                      "zero_optimization.offload_param.nvme_path=/slow"});
  const RunPlan plan = plan_on(config, {.fast_gib = 30, .slow_gib = 5});
  ASSERT_TRUE(plan.placement.fits) << does_not_fit(config, plan);
  for (const PathBytes& it : plan.memory.nvme_paths())
    EXPECT_LT(it.bytes, (it.path == "/fast" ? 30 : 5) * kGiB) << it.path;
  EXPECT_THAT(format_plan(config, plan, {}),
              AllOf(HasSubstr("/fast"), Not(HasSubstr("stripes")), Not(HasSubstr("together"))));
  const auto json = nlohmann::json::parse(plan_json(config, plan, {}))["nvme_paths"];
  ASSERT_EQ(json.size(), 2U);
  EXPECT_TRUE(json[0]["share"].is_null() && json[0]["weight"].is_null());
}

TEST(NvmeStripes, ThatMakeRoomSlowTheDrivesTogetherDown) {
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = drives.folders["/slow"].free_bytes = 100 * kGiB;
  ProbeReport machine = measured();
  NvmeStripes stripes = nvme_stripes(over_two_paths(), machine, &drives);
  EXPECT_FALSE(roomier_weights(stripes, 120 * kGiB).has_value());  // as they are now
  EXPECT_FALSE(roomier_weights(stripes, 191 * kGiB).has_value());  // more than both have
  EXPECT_THAT(restriped_text(stripes), IsEmpty());
  const auto roomier = roomier_weights(stripes, 190 * kGiB - 1);
  ASSERT_TRUE(roomier.has_value());
  EXPECT_THAT(*roomier, ElementsAre(1, 1));
  restripe(stripes, *roomier, machine);
  EXPECT_THAT(stripes.weights, ElementsAre(1, 1));
  EXPECT_EQ(machine.paths[0].weight, 1);
  EXPECT_TRUE(machine.drives_when.estimated);
  // 4 of 8 GB/s that both could do, and the measured values are reduced by the same factor.
  EXPECT_DOUBLE_EQ(machine.speeds.drives.in_bytes_per_s, 3.5e9);
  EXPECT_DOUBLE_EQ(machine.speeds.drives.out_both_bytes_per_s, 1.75e9);
  EXPECT_THAT(restriped_text(stripes),
              AllOf(HasSubstr("distributed 1:1"), HasSubstr("instead of 3:1"),
                    HasSubstr("slower together")));
}

// Nothing is known of drives that were not measured.
TEST(NvmeStripes, ThatMakeRoomAreNotCalledSlowerWithoutAMeasurement) {
  MadeUpDrives drives;
  drives.folders["/fast"].free_bytes = drives.folders["/slow"].free_bytes = 100 * kGiB;
  ProbeReport described;
  described.speeds.drives = measured().speeds.drives;
  NvmeStripes stripes = nvme_stripes(over_two_paths(), described, &drives);
  restripe(stripes, {1, 2}, described);
  EXPECT_EQ(described.speeds.drives.in_bytes_per_s, measured().speeds.drives.in_bytes_per_s);
  EXPECT_THAT(
      restriped_text(stripes),
      AllOf(HasSubstr("distributed 1:2"), HasSubstr("instead of 1:1"), Not(HasSubstr("slower"))));
}

TEST(NvmeStripes, StayAsTheyAreWhereThereIsRoom) {
  const RunPlan plan = plan_on(over_two_paths(), {.fast_gib = 30, .slow_gib = 30});
  ASSERT_TRUE(plan.placement.fits);
  EXPECT_THAT(plan.stripes.weights, ElementsAre(1, 1));
  EXPECT_THAT(plan.memory.notes, Not(testing::Contains(HasSubstr("stripes"))));
  EXPECT_NEAR(static_cast<double>(plan.input.budget.nvme) / kGiB, 57, 0.01);
}

TEST(NvmeStripes, AreLoweredWhereAPathHasNotTheRoom) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"budget.nvme_gib=500"}}) {
    const config::Config config = over_two_paths(more);
    const RunPlan plan = plan_on(config, {.fast_gib = 4, .slow_gib = 100});
    ASSERT_TRUE(plan.placement.fits) << does_not_fit(config, plan);
    ASSERT_EQ(plan.stripes.weights.size(), 2U);
    EXPECT_LT(plan.stripes.weights[0], plan.stripes.weights[1]);
    EXPECT_THAT(plan.memory.state.optimizer.store.weights, testing::Eq(plan.stripes.weights));
    const std::vector<PathBytes> paths = plan.memory.nvme_paths();
    ASSERT_EQ(paths.size(), 2U);
    EXPECT_LE(paths[0].bytes, 4 * kGiB);
    EXPECT_GT(paths[0].bytes, 3 * kGiB);  // no further than needed
    EXPECT_GT(paths[1].bytes, 10 * kGiB);
    EXPECT_THAT(plan.memory.notes, testing::Contains(HasSubstr("instead of 1:1")));
    EXPECT_THAT(format_plan(config, plan, {}),
                AllOf(HasSubstr("NVMe path"), HasSubstr("/fast"), HasSubstr("instead of 1:1")));
    const auto json = nlohmann::json::parse(plan_json(config, plan, {}))["nvme_paths"];
    ASSERT_EQ(json.size(), 2U);
    EXPECT_EQ(json[1]["path"], "/slow");
    EXPECT_EQ(json[1]["weight"], plan.stripes.weights[1]);
    EXPECT_EQ(json[1]["bytes"], paths[1].bytes);
    EXPECT_EQ(json[0]["room_bytes"], plan.stripes.room_bytes[0]);
    EXPECT_DOUBLE_EQ(json[0]["share"].get<double>() + json[1]["share"].get<double>(), 1);
  }
}

TEST(NvmeStripes, ThatAreNamedStayAndTheRefusalNamesThem) {
  const config::Config config = over_two_paths({"placement.nvme_weights=[1,1]"});
  const RunPlan refused = plan_on(config, {.fast_gib = 4, .slow_gib = 100});
  ASSERT_FALSE(refused.placement.fits);
  EXPECT_THAT(refused.stripes.weights, ElementsAre(1, 1));
  EXPECT_THAT(does_not_fit(config, refused), HasSubstr("placement.nvme_weights \"auto\""));
  const config::Config by_hand = over_two_paths({"placement.nvme_weights=[1,5]"});
  EXPECT_TRUE(plan_on(by_hand, {.fast_gib = 4, .slow_gib = 100}).placement.fits);
  // No weights suffice, so the message does not mention any.
  const RunPlan full = plan_on(config, {.fast_gib = 4, .slow_gib = 5});
  ASSERT_FALSE(full.placement.fits);
  EXPECT_THAT(does_not_fit(config, full),
              AllOf(HasSubstr("of NVMe are missing"), Not(HasSubstr("nvme_weights"))));
}

}  // namespace
}  // namespace sluice::engine
