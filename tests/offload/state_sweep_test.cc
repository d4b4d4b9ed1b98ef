// Restores and snapshots with many threads: the same bits as with one, and after any failure an
// error and no thread that continues.
#include "offload/state/state_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "aio/log.h"
#include "tests/offload/offloader_under_test.h"
#include "tests/sanitized.h"

namespace sluice::offload {
namespace {

using testing::HasSubstr;

constexpr Calls kBothCalls[] = {Calls::kInOrder, Calls::kAnyOrder};

// Sub-groups of several tiles and a bit, so that records and GPU batches have several tiles.
std::vector<UnitSpec> many_tiles() {
  return {{"wte", {{0, 9 * kTileElements + 17}}}, {"h.0", {{0, 5 * kTileElements}, {1, 333}}}};
}
constexpr std::uint64_t kSubGroup = 4 * kTileElements + 7;

std::vector<CanonicalUnit> initial_state(const Problem& problem) {
  // Values that bf16 represents, if moments have that type.
  const bool narrow = problem.kind().moments == ElementType::kBf16;
  std::vector<CanonicalUnit> state;
  for (std::size_t u = 0; u < problem.units().size(); ++u) {
    state.push_back(problem.initial(static_cast<int>(u)));
    CanonicalUnit& unit = state.back();
    for (std::size_t i = 0; i < unit.m.size(); ++i) {  // as if steps had been taken; no NaNs
      unit.master[i] = 0.001F * static_cast<float>(i % 65'521) - 30;
      unit.m[i] = narrow ? static_cast<float>(i % 509) - 254 : static_cast<float>(i % 1009) - 500;
      unit.v[i] = static_cast<float>(i % (narrow ? 251 : 2003));
    }
  }
  return state;
}

Status restore(Rig& rig, const std::vector<CanonicalUnit>& from, Calls calls) {
  const auto fill = [&](int number, const StateSlice& slice) -> Status {
    const CanonicalUnit& unit = from[static_cast<std::size_t>(number)];
    const auto copy = [&](const std::vector<float>& all, std::span<float> to) {
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(slice.first_element), to.size(),
                  to.begin());
    };
    copy(unit.master, slice.master());
    copy(unit.m, slice.fields[1]);
    copy(unit.v, slice.fields[2]);
    return {};
  };
  return rig.offloader().restore(rig.source(), fill, calls);
}

// By place, not by order.
std::vector<CanonicalUnit> taken(Rig& rig, const std::vector<CanonicalUnit>& like, Calls calls) {
  std::vector<CanonicalUnit> all = like;
  for (CanonicalUnit& unit : all)
    for (auto* field : {&unit.master, &unit.m, &unit.v}) std::ranges::fill(*field, -7.0F);
  const auto take = [&](int number, const StateSlice& slice) -> Status {
    CanonicalUnit& unit = all[static_cast<std::size_t>(number)];
    const auto first = static_cast<std::ptrdiff_t>(slice.first_element);
    std::ranges::copy(slice.master(), unit.master.begin() + first);
    std::ranges::copy(slice.fields[1], unit.m.begin() + first);
    std::ranges::copy(slice.fields[2], unit.v.begin() + first);
    return {};
  };
  EXPECT_OK(rig.offloader().snapshot(rig.source(), take, calls));
  return all;
}

bool same(const std::vector<CanonicalUnit>& a, const std::vector<CanonicalUnit>& b) {
  const auto same_bits = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  };
  return std::ranges::equal(a, b, [&](const CanonicalUnit& x, const CanonicalUnit& y) {
    return same_bits(x.master, y.master) && same_bits(x.m, y.m) && same_bits(x.v, y.v);
  });
}

TEST(StateSweep, SetsAndTakesTheSameBitsWithAnyThreads) {
  std::uint64_t number = 0;  // of a combination; sanitizers alternate calls and take a sample
  for (const ProblemKind& kind : kProblemKinds) {
    const Problem problem(kind, many_tiles(), 0);
    const auto state = initial_state(problem);
    for (const TierFractions& fractions :
         {TierFractions{.gpu = 1, .cpu = 0, .nvme = 0},
          TierFractions{.gpu = 0, .cpu = 1, .nvme = 0}, kAllNvme, kFullMix}) {
      if (number++ % sweep_stride(1) != 0) continue;
      for (const int threads : kSanitized ? std::vector{4} : std::vector{1, 2, 5, 40}) {
        for (const Calls calls : kBothCalls) {
          if (kSanitized && (calls == Calls::kInOrder) == ((number + number / 4) % 2 == 0))
            continue;
          Rig rig(problem, {.fractions = fractions,
                            .sub_group_elements = kSubGroup,
                            .threads = threads,
                            .record_elements = 3 * kTileElements});
          ASSERT_OK(restore(rig, state, calls));
          EXPECT_TRUE(same(taken(rig, state, calls), state)) << threads << " threads";
        }
      }
    }
  }
}

// Every third master of a unit.
Status amend(Rig& rig, const std::vector<int>& units) {
  return rig.offloader().amend(rig.source(), units, [](int, const StateSlice& slice) -> Status {
    for (std::size_t i = 0; i < slice.master().size(); ++i)
      if ((slice.first_element + i) % 3 == 0) slice.master()[i] = 0.25F;
    return {};
  });
}

struct Amended {
  TierFractions fractions;
  std::vector<int> units;
  bool prefetched;
};

std::vector<Amended> ways_to_amend() {
  std::vector<Amended> all;
  for (const TierFractions& fractions :
       {TierFractions{.gpu = 1, .cpu = 0, .nvme = 0}, TierFractions{.gpu = 0, .cpu = 1, .nvme = 0},
        kAllNvme, kFullMix})
    for (const std::vector<int>& units : {std::vector{1}, std::vector{0, 1}})
      for (const bool prefetched : {false, true}) all.push_back({fractions, units, prefetched});
  return all;
}

TEST(StateSweep, AmendsSomeUnitsAndLeavesAllElseAsItIs) {
  const std::vector<Amended> ways = ways_to_amend();
  std::size_t first = 0;  // with a sample of the combinations, each kind takes others
  for (const ProblemKind& kind : kProblemKinds) {
    const Problem problem(kind, many_tiles(), 0);
    const auto state = initial_state(problem);
    for (std::size_t way = first++; way < ways.size(); way += sweep_stride(3)) {
      const auto& [fractions, units, prefetched] = ways[way];
      const RigOptions options{.fractions = fractions,
                               .sub_group_elements = kSubGroup,
                               .threads = 3,
                               .record_elements = 3 * kTileElements};
      auto expected = state;
      for (const int unit : units) {
        std::vector<float>& master = expected[static_cast<std::size_t>(unit)].master;
        for (std::size_t i = 0; i < master.size(); i += 3) master[i] = 0.25F;
      }
      Rig fresh(problem, options);
      ASSERT_OK(restore(fresh, expected, Calls::kInOrder));
      Rig rig(problem, options);
      ASSERT_OK(restore(rig, state, Calls::kInOrder));
      if (prefetched) ASSERT_OK(rig.offloader().prefetch());
      ASSERT_OK(amend(rig, units));
      EXPECT_TRUE(same(taken(rig, state, Calls::kInOrder), expected));
      for (int unit = 0; unit < 2; ++unit)
        EXPECT_EQ(rig.source().param_hash(unit), fresh.source().param_hash(unit));
    }
  }
}

TEST(StateSweep, EndsWithTheErrorOfAnAmendment) {
  const Problem problem(kProblemKinds[0], many_tiles(), 0);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = kSubGroup, .threads = 2});
  ASSERT_OK(restore(rig, initial_state(problem), Calls::kInOrder));
  const std::vector<int> units{0, 1};
  const Status failed =
      rig.offloader().amend(rig.source(), units, [](int number, const StateSlice&) -> Status {
        if (number == 0) return {};
        return Error(ErrorCode::kInternal, "no such value");
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message(), HasSubstr("no such value"));
  EXPECT_THAT(rig.offloader().drain().error().message(), HasSubstr("no such value"));
}

TEST(StateSweep, CallsOneAtATimeInOrderWhereThatIsWanted) {
  const Problem problem(kProblemKinds[0], many_tiles(), 0);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = kSubGroup, .threads = 4});
  std::atomic<int> inside{0};
  std::pair<int, std::uint64_t> next{0, 0};  // unit, element
  const auto visit = [&](int number, const StateSlice& slice) -> Status {
    EXPECT_EQ(++inside, 1);
    if (number != next.first) next = {number, 0};
    EXPECT_EQ(next.second, slice.first_element);
    next.second += slice.master().size();
    --inside;
    return {};
  };
  ASSERT_OK(rig.offloader().restore(rig.source(), visit));
  EXPECT_EQ(next, std::pair(1, std::uint64_t{5 * kTileElements + 333}));
  next = {0, 0};
  ASSERT_OK(rig.offloader().snapshot(rig.source(), visit));
  EXPECT_EQ(next, std::pair(1, std::uint64_t{5 * kTileElements + 333}));
}

TEST(StateSweep, EndsWithTheErrorOfAnyTileAndPoisonsARestore) {
  const Problem problem(kProblemKinds[0], many_tiles(), 0);
  const auto state = initial_state(problem);
  for (const Calls calls : kBothCalls) {
    for (const int threads : {1, 4}) {
      bool failed = true;
      for (int fail_at = 0; failed; fail_at += kSanitized ? 5 : 1) {
        Rig rig(problem,
                {.fractions = kFullMix, .sub_group_elements = kSubGroup, .threads = threads});
        std::atomic<int> visits{0};
        const auto visit = [&](int, const StateSlice&) -> Status {
          if (visits++ != fail_at) return {};
          return Error(ErrorCode::kCorrupt, "the checkpoint is torn");
        };
        const Status status = rig.offloader().restore(rig.source(), visit, calls);
        failed = !status.ok();
        if (!failed) {
          EXPECT_GT(fail_at, 14);
          break;
        }
        EXPECT_EQ(status.error().message(), "setting the optimizer state: the checkpoint is torn");
        if (calls == Calls::kInOrder) {
          EXPECT_EQ(visits, fail_at + 1);
        }
        EXPECT_EQ(rig.offloader().drain().error().message(), status.error().message());
        // A snapshot just ends.
        Rig other(problem,
                  {.fractions = kFullMix, .sub_group_elements = kSubGroup, .threads = threads});
        ASSERT_OK(restore(other, state, calls));
        visits = 0;
        EXPECT_FALSE(other.offloader().snapshot(other.source(), visit, calls).ok());
        EXPECT_TRUE(same(taken(other, state, calls), state));
      }
    }
  }
}

TEST(StateSweep, EndsWithTheErrorOfAnyCopyToOrFromTheGpu) {
  const Problem problem(kProblemKinds[1], many_tiles(), 0);
  const auto state = initial_state(problem);
  for (const bool snapshot : {false, true}) {
    int errors = 0;
    for (int fail_at = 1;; fail_at += kSanitized ? 3 : 1) {
      Rig rig(problem, {.fractions = {.gpu = 1, .cpu = 0, .nvme = 0},
                        .sub_group_elements = kSubGroup,
                        .threads = 2});
      auto& device = static_cast<FakeDevice&>(rig.device());
      if (snapshot) ASSERT_OK(restore(rig, state, Calls::kAnyOrder));
      device.fail_at_copy = fail_at;
      const Status status =
          snapshot ? rig.offloader().snapshot(rig.source(),
                                              [](int, const StateSlice&) -> Status { return {}; })
                   : restore(rig, state, Calls::kAnyOrder);
      device.fail_at_copy = 0;
      if (status.ok()) break;
      ++errors;
      EXPECT_THAT(status.error().message(), HasSubstr("the copy failed"));
      EXPECT_EQ(rig.offloader().drain().error().message(), status.error().message());
    }
    EXPECT_GT(errors, kSanitized ? 2 : 8) << "four fields of each sub-group";
  }
}

TEST(StateSweep, EndsInRightBitsOrAnErrorWhateverTheDriveDoesDuringARestore) {
  log::set_sink([](log::Level, std::string_view) {});
  const Problem problem(kProblemKinds[0], many_tiles(), 0);
  const auto state = initial_state(problem);
  for (const Drive drive : {Drive::kSim, Drive::kPosix}) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += kSanitized ? 7 : 3) {
        Rig rig(
            problem,
            {.fractions = kAllNvme, .sub_group_elements = kSubGroup, .threads = 3, .drive = drive});
        rig.faults().set_plan(aio::FaultPlan::of(
            {.fault = aio::FaultKind::kEio, .nth = nth, .persistent = persistent}));
        const Status status = restore(rig, state, Calls::kAnyOrder);
        const bool injected = rig.faults().injected() > 0;
        rig.faults().set_plan({});
        EXPECT_EQ(status.ok(), !(persistent && injected));
        if (status.ok()) {
          EXPECT_TRUE(same(taken(rig, state, Calls::kAnyOrder), state));
        } else {
          EXPECT_THAT(status.error().message(), HasSubstr("writing record"));
          EXPECT_EQ(rig.offloader().drain().error().message(), status.error().message());
        }
        if (!injected) {
          EXPECT_GT(nth, 5U);
          break;
        }
      }
    }
  }
  log::set_sink({});
}

}  // namespace
}  // namespace sluice::offload
