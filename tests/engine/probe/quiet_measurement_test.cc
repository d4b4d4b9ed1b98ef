#include <gmock/gmock.h>

#include <ctime>
#include <vector>

#include "engine/probe/timed_passes.h"

namespace sluice::engine {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kSecond = 1'000'000'000;

// A process whose measurements take a second each, and lose the given shares of it.
class MadeUpProcess {
 public:
  explicit MadeUpProcess(std::vector<double> lost) : lost_(std::move(lost)) {}

  ReadCpuUse read() {
    return [this] { return now_; };
  }
  std::function<Result<int>()> measure() {
    return [this]() -> Result<int> {
      const double lost = lost_.at(static_cast<std::size_t>(measured_));
      const auto waited = static_cast<std::int64_t>(lost * kSecond);
      now_.wall_ns += kSecond;
      now_.ran_ns += kSecond - waited;
      now_.waited_ns = now_.waited_ns.value_or(0) + waited;
      return ++measured_;
    };
  }
  int measured() const { return measured_; }

 private:
  const std::vector<double> lost_;
  CpuUse now_{.waited_ns = 0};
  int measured_ = 0;
};

TEST(QuietMeasurement, MeasuresOnceWhereNothingElseRuns) {
  MadeUpProcess process({0.05});
  QuietMeasurement quiet({.work = MeasuredWork::kComputes, .read = process.read()});
  EXPECT_EQ(*quiet.measure<int>(process.measure()), 1);
  EXPECT_THAT(quiet.disturbance(), IsEmpty());
  EXPECT_EQ(process.measured(), 1);
}

TEST(QuietMeasurement, MeasuresAgainUntilItWasQuiet) {
  MadeUpProcess process({0.9, 0.4, 0.1});
  QuietMeasurement quiet({.work = MeasuredWork::kComputes, .read = process.read()});
  EXPECT_EQ(*quiet.measure<int>(process.measure()), 3);
  EXPECT_THAT(quiet.disturbance(), IsEmpty());
}

TEST(QuietMeasurement, TakesTheQuietestTryAndSaysWhatDisturbedIt) {
  MadeUpProcess process({0.9, 0.5, 0.6});
  QuietMeasurement quiet({.work = MeasuredWork::kComputes, .read = process.read()});
  EXPECT_EQ(*quiet.measure<int>(process.measure()), 2);
  EXPECT_THAT(quiet.disturbance(), HasSubstr("50% of the processor"));
  EXPECT_EQ(process.measured(), 3);
}

TEST(QuietMeasurement, DoesNotInsistWhereTheMachineStaysBusy) {
  MadeUpProcess process({0.6, 0.59, 0.0});
  QuietMeasurement quiet({.work = MeasuredWork::kComputes, .read = process.read()});
  EXPECT_EQ(*quiet.measure<int>(process.measure()), 2);
  EXPECT_EQ(process.measured(), 2);
}

TEST(QuietMeasurement, SaysWhichRepeatsDiffer) {
  MadeUpProcess process({0, 0, 0});
  QuietMeasurement quiet({.work = MeasuredWork::kWaits, .read = process.read()});
  const auto measured = quiet.measure<int>([&]() -> Result<int> {
    quiet.spread()->add({1, 1, 1, 1, 9, 9, 9, 9});
    return 5;
  });
  EXPECT_EQ(*measured, 5);
  EXPECT_THAT(quiet.disturbance(), HasSubstr("factor of 9"));
}

TEST(QuietMeasurement, GivesTheErrorOfWhatIsMeasured) {
  MadeUpProcess process({});
  QuietMeasurement quiet({.work = MeasuredWork::kWaits, .read = process.read()});
  const auto failed = quiet.measure<int>(
      []() -> Result<int> { return Error(ErrorCode::kNoSpace, "the drive is full"); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kNoSpace);
}

TEST(LostShare, IsWhatThreadsWaitedForACore) {
  const CpuUse before{.wall_ns = 0, .ran_ns = 0, .waited_ns = 0};
  const auto lost = [&](const CpuUse& after, MeasuredWork work) {
    return lost_share(before, after, work);
  };
  using enum MeasuredWork;
  const CpuUse two_threads{.wall_ns = 2 * kSecond, .ran_ns = 2 * kSecond, .waited_ns = 2 * kSecond};
  EXPECT_DOUBLE_EQ(lost(two_threads, kComputes), 0.5);
  // A thread that runs little, and waits for a core as long, loses nothing that matters.
  const CpuUse waits{.wall_ns = kSecond, .ran_ns = kSecond / 100, .waited_ns = kSecond / 100};
  EXPECT_DOUBLE_EQ(lost(waits, kWaits), 0.01);
  // A kernel that does not count it, or a machine that stood still.
  EXPECT_DOUBLE_EQ(lost({.wall_ns = kSecond, .ran_ns = kSecond / 4, .waited_ns = {}}, kComputes),
                   0.75);
  EXPECT_DOUBLE_EQ(lost({.wall_ns = kSecond, .ran_ns = kSecond / 4, .waited_ns = {}}, kWaits), 0);
}

// 32 threads on 16 cores, and a container that has half a core.
TEST(LostShare, LeavesOutWhatTheRunsOwnThreadsWaitForEachOther) {
  const CpuUse before{.wall_ns = 0, .ran_ns = 0, .waited_ns = 0};
  using enum MeasuredWork;
  const double half = own_wait_share(32, 16);
  EXPECT_DOUBLE_EQ(half, 0.5);
  const CpuUse alone{.wall_ns = kSecond, .ran_ns = 16 * kSecond, .waited_ns = 16 * kSecond};
  EXPECT_DOUBLE_EQ(lost_share(before, alone, kComputes, half), 0);
  // Other processes use half of the 16 cores.
  const CpuUse shared{.wall_ns = kSecond, .ran_ns = 8 * kSecond, .waited_ns = 24 * kSecond};
  EXPECT_DOUBLE_EQ(lost_share(before, shared, kComputes, half), 0.5);
  const CpuUse one_thread{.wall_ns = kSecond, .ran_ns = kSecond, .waited_ns = 0};
  EXPECT_DOUBLE_EQ(lost_share(before, one_thread, kComputes, half), 0);
  const CpuUse throttled{.wall_ns = kSecond, .ran_ns = kSecond / 2, .waited_ns = kSecond / 2};
  EXPECT_DOUBLE_EQ(lost_share(before, throttled, kComputes, own_wait_share(1, 0.5)), 0);
  EXPECT_DOUBLE_EQ(own_wait_share(16, 16), 0);
  EXPECT_DOUBLE_EQ(own_wait_share(1, 16), 0);
}

TEST(QuietMeasurement, SaysThatARunHasMoreThreadsThanCores) {
  EXPECT_THAT(crowding(32, 16), ContainsRegex("run.cpu_threads is 32.*16"));
  EXPECT_THAT(crowding(2, 1), HasSubstr("more threads than cores"));
  EXPECT_EQ(crowding(16, 16), "");
  EXPECT_EQ(crowding(2, 1.5), "");  // one thread for half a core
  MadeUpProcess process({0.5});
  QuietMeasurement quiet(
      {.work = MeasuredWork::kComputes, .own_wait = own_wait_share(2, 1), .read = process.read()});
  EXPECT_EQ(*quiet.measure<int>(process.measure()), 1);
  EXPECT_THAT(quiet.disturbance(), IsEmpty());
}

TEST(CpuUse, CountsWhatThisProcessRan) {
  const CpuUse before = cpu_use();
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 20) {
  }
  const CpuUse after = cpu_use();
  EXPECT_GE(after.ran_ns - before.ran_ns, kSecond / 25);
  EXPECT_GE(after.wall_ns - before.wall_ns, kSecond / 25);
  if (after.waited_ns) {
    EXPECT_GE(*after.waited_ns, before.waited_ns.value_or(0));
  }
}

}  // namespace
}  // namespace sluice::engine
