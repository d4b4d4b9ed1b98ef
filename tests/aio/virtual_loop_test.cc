#include "aio/virtual_loop.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

namespace sluice::aio {
namespace {

TEST(VirtualLoop, JumpsFromEventToEventInTheOrderOfTime) {
  VirtualLoop loop;
  std::vector<std::int64_t> times;
  const auto note = [&] { times.push_back(loop.now_ns()); };
  loop.schedule_at(3'000'000'000'000, note);
  loop.schedule_at(10, note);
  loop.schedule_at(20, note);
  EXPECT_EQ(loop.pending(), 3U);
  EXPECT_EQ(loop.now_ns(), 0);
  loop.run();
  EXPECT_EQ(times, (std::vector<std::int64_t>{10, 20, 3'000'000'000'000}));
  EXPECT_EQ(loop.now_ns(), 3'000'000'000'000);
  EXPECT_EQ(loop.pending(), 0U);
}

TEST(VirtualLoop, RunsEventsOfOneTimeInTheOrderTheyWereScheduled) {
  VirtualLoop loop;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    loop.schedule_at(i % 2 == 0 ? 5 : 4, [&order, i] { order.push_back(i); });
  }
  loop.run();
  std::vector<int> expected;
  for (int i = 1; i < 100; i += 2) expected.push_back(i);
  for (int i = 0; i < 100; i += 2) expected.push_back(i);
  EXPECT_EQ(order, expected);
}

TEST(VirtualLoop, AgreesWithASortWhenManyEventsAreScheduledFromEvents) {
  const std::uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  VirtualLoop loop;
  std::int64_t last_ns = -1;
  int ran = 0;
  int scheduled = 0;
  std::function<void(std::int64_t)> event = [&](std::int64_t due_ns) {
    EXPECT_EQ(loop.now_ns(), due_ns);
    EXPECT_GE(loop.now_ns(), last_ns);
    last_ns = loop.now_ns();
    ++ran;
    for (std::uint64_t i = random() % 3; i > 0 && scheduled < 5000; --i, ++scheduled) {
      const auto delay = static_cast<std::int64_t>(random() % 100);
      loop.schedule_after(delay, [&event, due = loop.now_ns() + delay] { event(due); });
    }
  };
  for (int i = 0; i < 50; ++i, ++scheduled) loop.schedule_at(i, [&event, i] { event(i); });
  loop.run();
  EXPECT_EQ(ran, scheduled);
  EXPECT_GT(ran, 50);
}

TEST(VirtualLoop, TreatsThePastAsNow) {
  VirtualLoop loop;
  std::int64_t seen_ns = -1;
  loop.schedule_at(100, [&] {
    loop.schedule_at(50, [&] { seen_ns = loop.now_ns(); });
    loop.schedule_after(-7, [&] { EXPECT_EQ(loop.now_ns(), 100); });
  });
  loop.run();
  EXPECT_EQ(seen_ns, 100);
}

TEST(VirtualLoop, RunOneRunsOneAndSaysWhenNoneIsLeft) {
  VirtualLoop loop;
  int ran = 0;
  loop.schedule_after(1, [&] { ++ran; });
  loop.schedule_after(2, [&] { ++ran; });
  EXPECT_TRUE(loop.run_one());
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(loop.run_one());
  EXPECT_FALSE(loop.run_one());
  EXPECT_EQ(loop.now_ns(), 2);
}

TEST(VirtualLoop, RunUntilStopsAtTheConditionAndReportsADeadlock) {
  VirtualLoop loop;
  int ran = 0;
  for (int i = 1; i <= 5; ++i) loop.schedule_at(i * 10, [&] { ++ran; });
  EXPECT_TRUE(loop.run_until([&] { return ran == 3; }));
  EXPECT_EQ(loop.now_ns(), 30);
  EXPECT_TRUE(loop.run_until([&] { return ran == 3; }));  // already true: no event runs
  EXPECT_EQ(loop.now_ns(), 30);
  EXPECT_FALSE(loop.run_until([&] { return ran == 100; }));
  EXPECT_EQ(ran, 5);
}

TEST(VirtualLoopDeathTest, RefusesASecondThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        VirtualLoop loop;
        std::thread([&] { loop.run_one(); }).join();
      },
      "two threads");
}

}  // namespace
}  // namespace sluice::aio
