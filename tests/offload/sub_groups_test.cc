#include "offload/sub_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace sluice::offload {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

std::vector<UnitSpec> two_units() {
  return {
      {.name = "wte", .ranges = {{.group = 0, .elements = 1000}}},
      {.name = "h.0", .ranges = {{.group = 0, .elements = 2500}, {.group = 1, .elements = 30}}}};
}

TEST(SubGroups, AreCutWithinUnitsAndParameterGroups) {
  const auto placement = place_by_fractions(two_units(), 1000, {.cpu = 1});
  ASSERT_TRUE(placement.ok());
  struct Expected {
    int unit, group;
    std::uint64_t first, elements;
  };
  constexpr std::array<Expected, 5> kExpected = {
      {{0, 0, 0, 1000}, {1, 0, 0, 1000}, {1, 0, 1000, 1000}, {1, 0, 2000, 500}, {1, 1, 2500, 30}}};
  ASSERT_EQ(placement->size(), kExpected.size());
  for (std::size_t i = 0; i < kExpected.size(); ++i) {
    const SubGroup& sub_group = (*placement)[i];
    EXPECT_EQ(sub_group.unit, kExpected[i].unit) << i;
    EXPECT_EQ(sub_group.group, kExpected[i].group) << i;
    EXPECT_EQ(sub_group.first_element, kExpected[i].first) << i;
    EXPECT_EQ(sub_group.elements, kExpected[i].elements) << i;
    EXPECT_EQ(sub_group.tier, Tier::kCpu) << i;
  }
}

TEST(SubGroups, LieWhereTheirUnitsElementsAreSaidToLie) {
  const std::vector<TierElements> elements = {{.gpu = 1000},
                                              {.gpu = 1200, .cpu = 1310, .nvme = 20}};
  const auto placement = place_by_elements(two_units(), 1000, elements);
  ASSERT_TRUE(placement.ok());
  ASSERT_TRUE(check_placement(two_units(), *placement).ok());
  struct Expected {
    int group;
    std::uint64_t first, elements;
    Tier tier;
  };
  constexpr std::array<Expected, 7> kExpected = {{{0, 0, 1000, Tier::kGpu},
                                                  {0, 0, 1000, Tier::kGpu},
                                                  {0, 1000, 200, Tier::kGpu},
                                                  {0, 1200, 1000, Tier::kCpu},
                                                  {0, 2200, 300, Tier::kCpu},
                                                  {1, 2500, 10, Tier::kCpu},
                                                  {1, 2510, 20, Tier::kNvme}}};
  ASSERT_EQ(placement->size(), kExpected.size());
  for (std::size_t i = 0; i < kExpected.size(); ++i) {
    const SubGroup& sub_group = (*placement)[i];
    EXPECT_EQ(sub_group.group, kExpected[i].group) << i;
    EXPECT_EQ(sub_group.first_element, kExpected[i].first) << i;
    EXPECT_EQ(sub_group.elements, kExpected[i].elements) << i;
    EXPECT_EQ(sub_group.tier, kExpected[i].tier) << i;
  }
}

TEST(SubGroups, RefuseTiersThatAreNotTheUnits) {
  const auto message = [](const std::vector<TierElements>& elements) -> std::string {
    const auto placement = place_by_elements(two_units(), 1000, elements);
    if (placement.ok()) return "";
    EXPECT_EQ(placement.error().code(), ErrorCode::kInvalidArgument);
    return placement.error().message();
  };
  EXPECT_THAT(message({{.gpu = 1000}}), HasSubstr("2 units, 1 answers"));
  EXPECT_THAT(message({{.gpu = 1000}, {.cpu = 2529}}), ContainsRegex("h.0.*2530"));
}

// Up to any sub-group, a tier's share of the elements is off by less than the largest sub-group.
TEST(SubGroups, GiveEachTierItsShareAllAlong) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<UnitSpec> units;
    for (int i = 0; i < 20; ++i)
      units.push_back({"u" + std::to_string(i), {{0, 1 + random() % 50'000}}});
    const double gpu = static_cast<double>(random() % 100) / 100;
    const double cpu = (1 - gpu) * static_cast<double>(random() % 101) / 100;
    const std::array<double, 3> fractions = {gpu, cpu, 1 - gpu - cpu};
    const std::uint64_t size = 1 + random() % 5000;
    const auto placement =
        place_by_fractions(units, size, {fractions[0], fractions[1], std::max(0.0, fractions[2])});
    ASSERT_TRUE(placement.ok()) << "seed " << seed << ": " << placement.error().message();
    ASSERT_TRUE(check_placement(units, *placement).ok()) << "seed " << seed;
    std::array<double, 3> dealt{};
    double total = 0;
    for (const SubGroup& sub_group : *placement) {
      dealt[static_cast<std::size_t>(sub_group.tier)] += static_cast<double>(sub_group.elements);
      total += static_cast<double>(sub_group.elements);
      for (std::size_t tier = 0; tier < 3; ++tier) {
        ASSERT_LE(std::fabs(dealt[tier] - fractions[tier] * total), 2 * static_cast<double>(size))
            << "seed " << seed;
      }
    }
  }
}

// A unit whose parameters are frozen.
TEST(SubGroups, LeaveOutAUnitOfWhichNothingIsTrained) {
  std::vector<UnitSpec> units = two_units();
  units.insert(units.begin() + 1, {.name = "frozen", .ranges = {}});
  const auto placement = place_by_fractions(units, 1000, {.cpu = 1});
  ASSERT_TRUE(placement.ok());
  EXPECT_TRUE(check_placement(units, *placement).ok());
  const auto without = place_by_fractions(two_units(), 1000, {.cpu = 1});
  ASSERT_EQ(placement->size(), without->size());
  for (std::size_t i = 0; i < placement->size(); ++i) {
    EXPECT_EQ((*placement)[i].unit, (*without)[i].unit == 0 ? 0 : 2) << i;
    EXPECT_EQ((*placement)[i].elements, (*without)[i].elements) << i;
  }
  const std::vector<TierElements> elements = {{.cpu = 1000}, {}, {.cpu = 30, .nvme = 2500}};
  const auto by_elements = place_by_elements(units, 1000, elements);
  ASSERT_TRUE(by_elements.ok());
  EXPECT_TRUE(check_placement(units, *by_elements).ok());
}

TEST(SubGroups, AreNotCutWhereOtherScalarsBegin) {
  std::vector<UnitSpec> units = two_units();
  const auto before = place_by_fractions(units, 600, {.cpu = 1}).value();
  units[1].scalars = {{3, 10}, {1, 2515}, {2, 5}};
  const auto after = place_by_fractions(units, 600, {.cpu = 1}).value();
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].elements, before[i].elements);
}

TEST(SubGroups, LeaveATierOfFractionZeroEmpty) {
  const auto placement = place_by_fractions(two_units(), 7, {.gpu = 0, .cpu = 0.3, .nvme = 0.7});
  for (const SubGroup& sub_group : *placement) EXPECT_NE(sub_group.tier, Tier::kGpu);
}

TEST(SubGroups, RefuseWhatCannotBePlaced) {
  const auto complaint = [](const std::vector<UnitSpec>& units, std::uint64_t size,
                            const TierFractions& fractions) {
    const auto placement = place_by_fractions(units, size, fractions);
    if (placement.ok()) return std::string();
    EXPECT_EQ(placement.error().code(), ErrorCode::kInvalidArgument);
    return placement.error().message();
  };
  EXPECT_THAT(complaint({}, 10, {}), HasSubstr("no unit"));
  EXPECT_THAT(complaint({{"h.0", {{0, 0}}}}, 10, {}), ContainsRegex("h.0.*empty range"));
  EXPECT_THAT(complaint({{"h.0", {{-1, 5}}}}, 10, {}), HasSubstr("parameter group -1"));
  EXPECT_THAT(complaint({{"h.0", {{0, 5}}, {{0, 4}}}}, 10, {}), ContainsRegex("h.0 has 5.*4"));
  EXPECT_THAT(complaint({{"h.0", {{0, 5}}, {{0, 4}, {-2, 1}}}}, 10, {}), HasSubstr("group -2"));
  EXPECT_THAT(complaint(two_units(), 0, {}), HasSubstr("at least 1 element"));
  EXPECT_THAT(complaint(two_units(), 10, {.gpu = 0.5, .cpu = 0.6}), HasSubstr("add up to 1.1"));
  EXPECT_THAT(complaint(two_units(), 10, {.gpu = -0.5, .cpu = 1.5}), HasSubstr("tier gpu"));
  EXPECT_THAT(complaint(two_units(), 10, {.nvme = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("tier nvme"));
}

// A rank of many, with a small model.
TEST(SubGroups, AreNoneWhereNoUnitHasElements) {
  const std::vector<UnitSpec> units = {{"wte", {}}, {"h.0", {}}};
  const auto placement = place_by_fractions(units, 10, {.cpu = 1});
  ASSERT_TRUE(placement.ok());
  EXPECT_TRUE(placement->empty());
  EXPECT_TRUE(check_placement(units, *placement).ok());
}

TEST(SubGroups, AreRefusedUnlessTheyCoverEachUnitOnceInOrder) {
  const std::vector<UnitSpec> units = two_units();
  const std::vector<SubGroup> good = place_by_fractions(units, 1000, {.cpu = 1}).value();
  const auto complaint = [&](const std::vector<SubGroup>& placement) {
    const Status status = check_placement(units, placement);
    if (status.ok()) return std::string();
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    return status.error().message();
  };
  EXPECT_EQ(complaint(good), "");
  auto missing = good;
  missing.erase(missing.begin() + 1);
  EXPECT_THAT(complaint(missing), HasSubstr("unit h.0 from element 0 on"));
  auto short_end = good;
  short_end.pop_back();
  EXPECT_THAT(complaint(short_end), HasSubstr("unit h.0 from element 2500 on"));
  auto swapped = good;
  std::swap(swapped[0], swapped[1]);
  EXPECT_THAT(complaint(swapped), HasSubstr("unit wte from element 0 on"));
  auto too_long = good;
  too_long.back().elements = 31;
  EXPECT_THAT(complaint(too_long), HasSubstr("sub-group [2500..2531) of unit h.0"));
  auto of_another_group = good;
  of_another_group.back().group = 0;
  EXPECT_THAT(complaint(of_another_group), HasSubstr("parameter group 0"));
  auto too_many = good;
  too_many.push_back(good.back());
  EXPECT_THAT(complaint(too_many), HasSubstr("1 sub-groups follow"));
}

}  // namespace
}  // namespace sluice::offload
