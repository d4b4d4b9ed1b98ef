// Units cut into shards: the part of each rank, and that ranks which each update their own part end
// with the state of a single rank.
#include "offload/unit_shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "aio/executor.h"
#include "offload/adamw/adamw.h"
#include "offload/state/optimizer_offloader.h"
#include "tests/aio/backends_under_test.h"
#include "tests/offload/hostile_numbers.h"

namespace sluice::offload {
namespace {

TEST(UnitShards, CoverEachUnitOnceInEqualPieces) {
  for (const std::uint64_t elements : {0U, 1U, 128U, 129U, 1000U, 65'536U, 1'000'003U}) {
    for (int world = 1; world <= 9; ++world) {
      const std::uint64_t piece = shard_piece_elements(elements, world);
      EXPECT_GE(gathered_elements(elements, world), elements);
      std::uint64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const UnitShard shard = shard_of(elements, RankPart{rank, world});
        EXPECT_EQ(shard.first_element, next);
        EXPECT_LE(shard.elements, piece);
        if (shard.elements > 0) {
          EXPECT_EQ(shard.first_element, piece * static_cast<std::uint64_t>(rank));
        }
        next = shard.end();
      }
      EXPECT_EQ(next, elements);
    }
  }
  EXPECT_EQ(gathered_elements(129, 1), 129U);  // one rank pads nothing
}

TEST(UnitShards, CutAUnitsRanges) {
  const UnitSpec unit{.name = "u",
                      .ranges = {{.group = 0, .elements = 300}, {.group = 1, .elements = 100}},
                      .scalars = {{.group = 2, .elements = 10}, {.group = 3, .elements = 390}}};
  const UnitSpec second = shard_of(unit, {.rank = 1, .world = 2});
  EXPECT_EQ(second.first_element, 256U);
  ASSERT_EQ(second.ranges.size(), 2U);
  EXPECT_EQ(second.ranges[0].elements, 44U);
  EXPECT_EQ(second.ranges[1].elements, 100U);
  ASSERT_EQ(second.scalars.size(), 1U);
  EXPECT_EQ(second.scalars[0].group, 3);
  EXPECT_EQ(second.elements(), 144U);
  EXPECT_TRUE(shard_of(unit, {.rank = 7, .world = 8}).ranges.empty());
}

using State = std::vector<std::tuple<float, float, float>>;  // by element of the unit

class Source final : public UnitSource {
 public:
  Source(std::vector<std::byte> gradient, std::size_t param_bytes)
      : gradient_(std::move(gradient)), param_(param_bytes) {}
  Result<UnitArrays> begin(int /*unit*/) override {
    return UnitArrays{.param = param_.data(), .grad = gradient_.data()};
  }
  void ready(int /*unit*/) noexcept override {}

 private:
  std::vector<std::byte> gradient_;
  std::vector<std::byte> param_;
};

// Two steps of the rank's shard of a unit of 3000 elements, gradients in fp32.
void train(ElementType moments, const RankPart& part, State& state) {
  const UnitSpec whole{.name = "u",
                       .ranges = {{.group = 0, .elements = 2500}, {.group = 1, .elements = 500}}};
  const UnitSpec shard = shard_of(whole, part);
  const std::uint64_t elements = shard.elements();
  if (elements == 0) return;
  HostileNumbers numbers(17);
  std::vector<float> gradient;
  for (std::uint64_t i = 0; i < whole.elements(); ++i) gradient.push_back(numbers.ordinary());
  std::vector<std::byte> bytes(elements * sizeof(float));
  std::memcpy(bytes.data(), gradient.data() + shard.first_element, bytes.size());
  Source source(std::move(bytes), elements * sizeof(float));

  OptimizerOffloader::Options options{.form = {.param = ParamForm::kFp32, .moments = moments},
                                      .grad_type = GradType::kFp32,
                                      .run_seed = 5,
                                      .units = {shard},
                                      .huge_pages = false};
  options.placement =
      place_by_elements(options.units, 1000, std::vector<TierElements>{{.cpu = elements}}).value();
  const auto executor = aio::make_executor(2).value();
  auto made = OptimizerOffloader::create(options, {.executor = executor.get()});
  ASSERT_OK(made);
  OptimizerOffloader& offloader = **made;
  const auto fill = [&](int, const StateSlice& slice) -> Status {
    for (std::size_t i = 0; i < slice.master().size(); ++i) {
      const auto element = static_cast<float>(slice.first_element + i);
      slice.master()[i] = element / 1000;
      slice.fields[1][i] = element * 0x1.1p-12F;
      slice.fields[2][i] = element * 0x1.3p-20F;
    }
    return {};
  };
  ASSERT_OK(offloader.restore(source, fill));
  for (int number = 1; number <= 2; ++number) {
    AdamwOptions scalars{.learning_rate = 0.01, .weight_decay = 0.1};
    scalars.step = number;
    AdamwOptions other = scalars;
    other.weight_decay = 0;
    const std::vector<AdamwScalars> groups = {make_adamw_scalars(scalars).value(),
                                              make_adamw_scalars(other).value()};
    ASSERT_OK(offloader.step({.groups = groups, .source = &source, .number = number}));
  }
  ASSERT_OK(offloader.snapshot(source, [&](int, const StateSlice& slice) -> Status {
    for (std::size_t i = 0; i < slice.master().size(); ++i)
      state.at(slice.first_element + i) = {slice.master()[i], slice.fields[1][i],
                                           slice.fields[2][i]};
    return {};
  }));
}

// bf16 moments are rounded with bits that depend on an element's place in the unit, not in the
// shard.
TEST(UnitShards, EndWithTheStateOfOneRank) {
  for (const ElementType moments : {ElementType::kFp32, ElementType::kBf16}) {
    State one(3000);
    train(moments, {}, one);
    EXPECT_NE(one[2999], State::value_type());
    for (const int world : {2, 3, 4, 30}) {
      State many(3000);
      for (int rank = 0; rank < world; ++rank) train(moments, {.rank = rank, .world = world}, many);
      EXPECT_EQ(one, many) << world << " ranks";
    }
  }
}

}  // namespace
}  // namespace sluice::offload
