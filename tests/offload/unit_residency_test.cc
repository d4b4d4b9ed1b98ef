#include "offload/unit_residency.h"

#include <gtest/gtest.h>

namespace sluice::offload {
namespace {

TEST(UnitResidency, JoinsWhatTheHostUpdates) {
  const std::vector<SubGroup> placement = {
      {.unit = 0, .first_element = 0, .elements = 10, .tier = Tier::kCpu},
      {.unit = 0, .first_element = 10, .elements = 5, .tier = Tier::kNvme},
      {.unit = 0, .first_element = 15, .elements = 4, .tier = Tier::kGpu},
      {.unit = 0, .first_element = 19, .elements = 1, .tier = Tier::kCpu},
      {.unit = 1, .first_element = 0, .elements = 7, .tier = Tier::kGpu},
      {.unit = 2, .first_element = 0, .elements = 3, .tier = Tier::kCpu},
      {.unit = 3, .first_element = 0, .elements = 3, .tier = Tier::kNvme}};
  const UnitResidency residency(4, placement, {false, false, true, false});

  ASSERT_EQ(residency.on_host(0).size(), 2U);
  EXPECT_EQ(residency.on_host(0)[0].first, 0U);
  EXPECT_EQ(residency.on_host(0)[0].elements, 15U);
  EXPECT_EQ(residency.on_host(0)[1].first, 19U);
  EXPECT_TRUE(residency.has_gpu_state(0));
  EXPECT_TRUE(residency.resident(0)) << "it has state on the GPU";

  EXPECT_TRUE(residency.resident(1));
  EXPECT_FALSE(residency.has_host_state(1));
  EXPECT_TRUE(residency.resident(2)) << "it was asked for";
  EXPECT_TRUE(residency.has_host_state(2));
  EXPECT_FALSE(residency.has_gpu_state(2));
  EXPECT_FALSE(residency.resident(3));
}

TEST(UnitResidency, OfSeveralRanksKeepsAShardWhereNothingElseStays) {
  const std::vector<SubGroup> placement = {
      {.unit = 0, .first_element = 0, .elements = 4, .tier = Tier::kGpu},
      {.unit = 0, .first_element = 4, .elements = 2, .tier = Tier::kCpu},
      {.unit = 1, .first_element = 0, .elements = 4, .tier = Tier::kGpu},
      {.unit = 2, .first_element = 0, .elements = 4, .tier = Tier::kCpu}};
  const UnitResidency residency(3, placement, {false, true, false}, /*is_sharded=*/true);
  EXPECT_FALSE(residency.resident(0)) << "only its shard has state there";
  EXPECT_TRUE(residency.keeps_shard(0));
  EXPECT_TRUE(residency.has_host_state(0));
  EXPECT_TRUE(residency.resident(1));
  EXPECT_FALSE(residency.keeps_shard(1)) << "it is part of the unit's place";
  EXPECT_FALSE(residency.keeps_shard(2));
}

TEST(UnitResidency, IsNothingWithoutAPlacement) {
  const UnitResidency residency;
  EXPECT_FALSE(residency.resident(7));
  EXPECT_FALSE(residency.has_gpu_state(7));
}

}  // namespace
}  // namespace sluice::offload
