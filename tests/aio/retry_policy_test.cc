#include "aio/retry_policy.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace sluice::aio {
namespace {

Incomplete after(IoKind kind, std::int64_t result, int retries) {
  return {.kind = kind, .result = result, .advanced = false, .retries = retries, .max_retries = 3};
}

TEST(RetryPolicy, GivesUpWhenTheTriesAreUsedUp) {
  for (const int error : {EINTR, EAGAIN, EIO, ENOSPC}) {
    EXPECT_EQ(judge_incomplete(after(IoKind::kWrite, -error, 2)), Verdict::kRetry) << error;
    EXPECT_EQ(judge_incomplete(after(IoKind::kWrite, -error, 3)), Verdict::kFail) << error;
  }
  EXPECT_EQ(judge_incomplete(after(IoKind::kRead, 0, 2)), Verdict::kRetry);
  EXPECT_EQ(judge_incomplete(after(IoKind::kRead, 0, 3)), Verdict::kFail);
}

TEST(RetryPolicy, GivesUpAtOnceOnWhatNoTryCanMend) {
  for (const int error : {EBADF, EINVAL, EFAULT, EROFS, EPERM, EFBIG}) {
    EXPECT_EQ(judge_incomplete(after(IoKind::kRead, -error, 0)), Verdict::kFail) << error;
  }
}

TEST(RetryPolicy, NeverRepeatsASyncThatFailed) {
  EXPECT_EQ(judge_incomplete(after(IoKind::kSync, -EIO, 0)), Verdict::kFail);
  EXPECT_EQ(judge_incomplete(after(IoKind::kSync, -ENOSPC, 0)), Verdict::kFail);
  EXPECT_EQ(judge_incomplete(after(IoKind::kSync, -EINTR, 0)), Verdict::kRetry);
}

TEST(RetryPolicy, WaitsLongerEachTimeWithinABound) {
  EXPECT_EQ(retry_delay_ns(-EAGAIN, 0), 0);
  EXPECT_GT(retry_delay_ns(-EAGAIN, 1), 0);
  std::int64_t before = 0;
  for (int retries = 0; retries < 11; ++retries) {
    const std::int64_t delay = retry_delay_ns(-EIO, retries);
    EXPECT_GE(delay, before);
    before = delay;
  }
  EXPECT_EQ(retry_delay_ns(-EIO, 60), 100'000'000);
}

TEST(RetryPolicy, EntersARingAgainWithGrowingDelaysAndNotForEver) {
  for (const int error : {EINTR, EAGAIN, EBUSY, ENOMEM, 0}) {
    std::int64_t before = 0;
    std::int64_t total = 0;
    int failures = 0;
    while (const auto delay = enter_retry_delay_ns(error, failures, kMaxEnterTries)) {
      EXPECT_GE(*delay, before);
      before = *delay;
      total += *delay;
      ++failures;
    }
    EXPECT_EQ(failures, kMaxEnterTries - 1);
    EXPECT_EQ(before, 1'000'000'000);
    EXPECT_LT(total, 10'000'000'000);
  }
  for (const int error : {EPERM, ENOSYS, EBADF, EINVAL, EFAULT})
    EXPECT_FALSE(enter_retry_delay_ns(error, 0, kMaxEnterTries)) << error;
}

TEST(RetryPolicy, TakesAnInterruptedWaitForNoFailureOfTheRing) {
  EXPECT_TRUE(is_interruption(EINTR, 5'000'000));
  EXPECT_FALSE(is_interruption(EINTR, 20'000)) << "nothing was waited for";
  for (const int error : {0, EAGAIN, EBUSY, ENOMEM, EPERM})
    EXPECT_FALSE(is_interruption(error, 5'000'000)) << error;
}

}  // namespace
}  // namespace sluice::aio
