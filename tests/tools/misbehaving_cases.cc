// A test program whose cases do what tests/run_cases.py has to distinguish; run_cases_test.py runs
// it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

TEST(Good, Passes) { std::puts("[  FAILED  ] Other.Case, or so this one prints"); }
TEST(Good, EndsItsOutputWithoutANewline) {
  std::fputs("no newline", stdout);
  std::fflush(stdout);
}
TEST(Good, IsSkipped) { GTEST_SKIP() << "not on this machine"; }
TEST(Bad, Fails) { EXPECT_EQ(1 + 1, 3); }
TEST(Bad, Crashes) { std::abort(); }
TEST(Bad, EndsTheProcess) { std::exit(0); }
TEST(Bad, Hangs) { std::this_thread::sleep_for(std::chrono::hours(1)); }
TEST(Race, IsReported) {
  std::puts("WARNING: ThreadSanitizer: data race (pid=1)");
  std::fflush(stdout);
  std::atexit([] { std::_Exit(66); });
}
class Between : public testing::Test {
 protected:
  static void TearDownTestSuite() { std::abort(); }
};
TEST_F(Between, PassesAndThenTheProcessEnds) {}
class Numbered : public testing::TestWithParam<int> {};
TEST_P(Numbered, Passes) { EXPECT_GE(GetParam(), 0); }
INSTANTIATE_TEST_SUITE_P(Of, Numbered, testing::Range(0, 5));

}  // namespace
