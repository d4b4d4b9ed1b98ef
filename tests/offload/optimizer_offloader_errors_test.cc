// The offloader after failures, and its refusal of invalid requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <latch>
#include <thread>

#include "tests/offload/offloader_under_test.h"

namespace sluice::offload {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

template <typename T>
std::string message_of(const T& result) {
  return result.ok() ? "no error" : result.error().message();
}

// All calls return the error, and none hangs.
void expect_poisoned(Rig& rig, const std::string& message) {
  EXPECT_EQ(message_of(rig.start_step(0, true)), message);
  EXPECT_EQ(message_of(rig.offloader().prefetch()), message);
  EXPECT_EQ(message_of(rig.offloader().drain()), message);
  EXPECT_EQ(message_of(rig.restore()), message);
  EXPECT_EQ(message_of(rig.snapshot()), message);
  for (const int unit : {0, 1, 2}) {
    EXPECT_TRUE(rig.offloader().is_ready(unit));
    EXPECT_EQ(message_of(rig.offloader().wait_ready(unit)), message);
  }
}

TEST(OptimizerOffloaderErrors, WakesEverybodyWithTheFirstErrorAndKeepsIt) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  const std::string message = "updating unit h.0: the parameters are gone";
  for (const bool background : {false, true}) {
    Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 7001, .drive = Drive::kPosix});
    ASSERT_OK(rig.restore());
    ASSERT_OK(rig.run_step(0, background));
    std::latch fail_now(1);
    rig.source().on_begin = [&](int unit) -> Status {
      if (unit != 1) return {};
      fail_now.wait();
      return Error(ErrorCode::kIo, "the parameters are gone");
    };
    if (!background) {
      fail_now.count_down();
      EXPECT_EQ(message_of(rig.start_step(1, false)), message);
    } else {
      ASSERT_OK(rig.start_step(1, true));
      std::string seen_by_waiter;
      std::thread waiter([&] { seen_by_waiter = message_of(rig.offloader().wait_ready(2)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      fail_now.count_down();
      waiter.join();
      EXPECT_EQ(seen_by_waiter, message);
    }
    expect_poisoned(rig, message);
  }
}

TEST(OptimizerOffloaderErrors, IsPoisonedByALaunchThatFails) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 7001});
  ASSERT_OK(rig.restore());
  static_cast<FakeDevice&>(rig.device()).fail_at_step = 2;
  ASSERT_OK(rig.start_step(0, false));
  const std::string message = message_of(rig.offloader().drain());
  EXPECT_THAT(message, AllOf(HasSubstr("updating unit "), HasSubstr("the launch failed")));
  expect_poisoned(rig, message);
}

TEST(OptimizerOffloaderErrors, SurvivesASnapshotThatItsTakerGivesUp) {
  const Problem problem(kProblemKinds[0], small_units(), 2);
  for (const int fail_at : {0, 1, 5, 12}) {
    Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 7001});
    ASSERT_OK(rig.restore());
    ASSERT_OK(rig.run_step(0, false));
    int taken = 0;
    const Status status =
        rig.offloader().snapshot(rig.source(), [&](int, const StateSlice&) -> Status {
          if (taken++ < fail_at) return {};
          return Error(ErrorCode::kNoSpace, "the checkpoint does not fit");
        });
    EXPECT_EQ(message_of(status), "reading the optimizer state: the checkpoint does not fit");
    ASSERT_OK(rig.run_step(1, false));
    EXPECT_EQ(rig.difference_from_solution(), "");
  }
}

TEST(OptimizerOffloaderErrors, IsPoisonedByARestoreThatIsGivenUp) {
  const Problem problem(kProblemKinds[0], small_units(), 1);
  Rig rig(problem, {.fractions = kAllNvme, .sub_group_elements = 7001});
  int filled = 0;
  const Status status =
      rig.offloader().restore(rig.source(), [&](int, const StateSlice&) -> Status {
        if (filled++ < 5) return {};
        return Error(ErrorCode::kCorrupt, "the checkpoint is torn");
      });
  EXPECT_EQ(message_of(status), "setting the optimizer state: the checkpoint is torn");
  expect_poisoned(rig, message_of(status));
}

TEST(OptimizerOffloaderErrors, RefusesCallsThatMakeNoSenseUnharmed) {
  const Problem problem(kProblemKinds[0], small_units(), 1);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 7001});
  EXPECT_THAT(message_of(rig.offloader().prefetch()), HasSubstr("restore() comes first"));
  EXPECT_THAT(message_of(rig.start_step(0, true)), HasSubstr("restore() comes first"));
  EXPECT_THAT(message_of(rig.snapshot()), HasSubstr("restore() comes first"));
  ASSERT_OK(rig.restore());
  const std::vector<AdamwScalars> groups = problem.scalars(0);
  EXPECT_THAT(message_of(rig.offloader().step(
                  {.groups = std::span(groups).first(1), .source = &rig.source()})),
              ContainsRegex("2 parameter groups.*of 1"));
  EXPECT_THAT(message_of(rig.offloader().step({.groups = groups})), HasSubstr("needs a source"));
  ASSERT_OK(rig.run_step(0, false));
  EXPECT_EQ(rig.difference_from_solution(), "");
}

TEST(OptimizerOffloaderErrors, WantsTheScalarsThatUnitsName) {
  const Problem problem(kProblemKinds[0], units_with_scalars(), 0);
  Rig rig(problem, {.fractions = kFullMix});
  ASSERT_OK(rig.restore());
  const std::vector<AdamwScalars> groups = problem.scalars(0);
  EXPECT_THAT(message_of(rig.offloader().step(
                  {.groups = std::span(groups).first(2), .source = &rig.source()})),
              ContainsRegex("3 parameter groups.*of 2"));
}

TEST(OptimizerOffloaderErrors, SaysWhatIsMissingWhenItIsMade) {
  const Problem problem(kProblemKinds[0], small_units(), 0);
  Rig rig(problem, {.fractions = kFullMix, .sub_group_elements = 7001});
  const auto complaint = [](const OptimizerOffloader::Options& options,
                            const OptimizerOffloader::Environment& environment) {
    return message_of(OptimizerOffloader::create(options, environment));
  };
  OptimizerOffloader::Options options = rig.options();
  options.store.run = "another";
  OptimizerOffloader::Environment none = rig.environment();
  none.executor = nullptr;
  EXPECT_THAT(complaint(options, none), HasSubstr("needs an executor"));
  none = rig.environment();
  none.device = nullptr;
  EXPECT_THAT(complaint(options, none), HasSubstr("no device tier"));
  none = rig.environment();
  none.writes = nullptr;
  EXPECT_THAT(complaint(options, none), HasSubstr("no queue"));
  FakeDevice small(1);
  none = rig.environment();
  none.device = &small;
  EXPECT_THAT(complaint(options, none), ContainsRegex("GPU memory.*4K"));
  auto wrong = options;
  wrong.record_elements = 1000;
  EXPECT_THAT(complaint(wrong, rig.environment()), HasSubstr("a multiple of 65536"));
  wrong = options;
  wrong.swap.buffers = 1;
  EXPECT_THAT(complaint(wrong, rig.environment()), HasSubstr("2 to 1024 buffers"));
  wrong = options;
  wrong.placement.pop_back();
  EXPECT_THAT(complaint(wrong, rig.environment()), HasSubstr("unit ln_f"));
}

TEST(OptimizerOffloaderErrors, NamesTheRecordThatIsDamagedOnTheDrive) {
  const Problem problem(kProblemKinds[0], small_units(), 1);
  Rig rig(problem, {.fractions = kAllNvme, .sub_group_elements = 7001, .drive = Drive::kPosix});
  ASSERT_OK(rig.restore());
  ASSERT_OK(rig.offloader().drain());
  {
    std::fstream file(rig.folder() + "/sluice-test/records",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(200'000);
    const int byte = file.get();
    file.seekp(200'000);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }
  const Status status = rig.run_step(0, false);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr("updating unit wte"), HasSubstr("record wte/adamw[14002..21003)")));
  expect_poisoned(rig, status.error().message());
}

}  // namespace
}  // namespace sluice::offload
