#include "offload/place_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::offload {
namespace {

TEST(PlaceState, GivesEachTierItsElementsInOrder) {
  const std::vector<UnitSpec> units = {
      {.name = "h0", .ranges = {{.group = 0, .elements = 100}, {.group = 1, .elements = 30}}}};
  const std::vector<UnitPlace> places = {
      {.gpu_elements = 50, .cpu_elements = 60, .nvme_elements = 20}};
  const auto placement = place_by_plan(units, 40, places);
  ASSERT_TRUE(placement.ok());
  struct Expected {
    int group;
    std::uint64_t first, elements;
    Tier tier;
  };
  const std::vector<Expected> expected = {{0, 0, 40, Tier::kGpu},   {0, 40, 10, Tier::kGpu},
                                          {0, 50, 40, Tier::kCpu},  {0, 90, 10, Tier::kCpu},
                                          {1, 100, 10, Tier::kCpu}, {1, 110, 20, Tier::kNvme}};
  ASSERT_EQ(placement->size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const SubGroup& sub_group = (*placement)[i];
    EXPECT_EQ(sub_group.group, expected[i].group) << i;
    EXPECT_EQ(sub_group.first_element, expected[i].first) << i;
    EXPECT_EQ(sub_group.elements, expected[i].elements) << i;
    EXPECT_EQ(sub_group.tier, expected[i].tier) << i;
  }
}

TEST(PlaceState, AddsUpForAnyPlan) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<UnitSpec> units;
    std::vector<UnitPlace> places;
    for (int i = 0; i < 5; ++i) {
      const std::uint64_t decayed = 1 + random() % 10'000;
      const std::uint64_t undecayed = 1 + random() % 100;
      units.push_back({.name = "u", .ranges = {{0, decayed}, {1, undecayed}}});
      const std::uint64_t gpu = random() % (decayed + undecayed + 1);
      const std::uint64_t cpu = random() % (decayed + undecayed - gpu + 1);
      places.push_back({.gpu_elements = gpu,
                        .cpu_elements = cpu,
                        .nvme_elements = decayed + undecayed - gpu - cpu});
    }
    const auto placement = place_by_plan(units, 1 + random() % 3000, places);
    ASSERT_TRUE(placement.ok()) << "seed " << seed;
    ASSERT_TRUE(check_placement(units, *placement).ok()) << "seed " << seed;
    std::vector<UnitPlace> placed(units.size());
    for (const SubGroup& it : *placement) {
      UnitPlace& place = placed[static_cast<std::size_t>(it.unit)];
      (it.tier == Tier::kGpu   ? place.gpu_elements
       : it.tier == Tier::kCpu ? place.cpu_elements
                               : place.nvme_elements) += it.elements;
    }
    for (std::size_t i = 0; i < units.size(); ++i) {
      EXPECT_EQ(placed[i].gpu_elements, places[i].gpu_elements) << "seed " << seed;
      EXPECT_EQ(placed[i].cpu_elements, places[i].cpu_elements) << "seed " << seed;
      EXPECT_EQ(placed[i].nvme_elements, places[i].nvme_elements) << "seed " << seed;
    }
  }
}

TEST(PlaceState, RefusesAPlanOfAnotherModel) {
  const std::vector<UnitSpec> units = {{.name = "h0", .ranges = {{.group = 0, .elements = 100}}}};
  const std::vector<UnitPlace> other = {{.cpu_elements = 99}};
  const auto placed = place_by_plan(units, 10, other);
  ASSERT_FALSE(placed.ok());
  EXPECT_NE(placed.error().message().find("99 elements in unit h0"), std::string::npos);
  EXPECT_FALSE(place_by_plan(units, 10, {}).ok());
  EXPECT_FALSE(place_by_plan(units, 0, std::vector<UnitPlace>{{.cpu_elements = 100}}).ok());
}

}  // namespace
}  // namespace sluice::offload
