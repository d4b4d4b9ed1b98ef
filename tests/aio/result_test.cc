#include "aio/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

namespace sluice {
namespace {

TEST(Error, SaysOperationPathOffsetLengthAndErrno) {
  const Error error = Error::from_errno(
      ENOSPC,
      {.operation = "write", .path = "/nvme/state.bin", .offset_bytes = 4096, .length_bytes = 512});
  EXPECT_EQ(error.message(),
            "write of 512 bytes at offset 4096 in /nvme/state.bin failed: No space left on device "
            "(ENOSPC): free some space there, or choose another path");
  EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
  EXPECT_EQ(error.error_number(), ENOSPC);
}

TEST(Error, LeavesOutWhatDoesNotApply) {
  EXPECT_EQ(Error::from_errno(ENOENT, {.operation = "open", .path = "/x"}).message(),
            "open /x failed: No such file or directory (ENOENT)");
  EXPECT_EQ(Error::from_errno(EINTR, {.operation = "wait"}).message(),
            "wait failed: Interrupted system call (EINTR)");
  EXPECT_EQ(Error::from_errno(EFBIG, {.operation = "allocation", .path = "/x", .length_bytes = 0})
                .message(),
            "allocation of 0 bytes in /x failed: File too large (EFBIG): the file would exceed "
            "the size limit: raise ulimit -f, or choose another file system");
}

TEST(Error, TakesTheCallersAdviceInsteadOfItsOwn) {
  const Error error = Error::from_errno(EIO, {.operation = "sync", .path = "/x"}, "call for help");
  EXPECT_EQ(error.message(), "sync /x failed: Input/output error (EIO): call for help");
}

TEST(Error, NamesAnErrnoThatNobodyKnows) {
  const Error error = Error::from_errno(9999, {.operation = "read", .path = "/x"});
  EXPECT_EQ(error.message(), "read /x failed: unknown error (errno 9999)");
  EXPECT_EQ(error.code(), ErrorCode::kIo);
}

TEST(Error, GivesEachErrnoTheCodeThatCallersDecideOn) {
  const std::pair<int, ErrorCode> expected[] = {{EINVAL, ErrorCode::kInvalidArgument},
                                                {ENOTDIR, ErrorCode::kInvalidArgument},
                                                {ENOENT, ErrorCode::kNotFound},
                                                {EEXIST, ErrorCode::kAlreadyExists},
                                                {EACCES, ErrorCode::kPermission},
                                                {EPERM, ErrorCode::kPermission},
                                                {EROFS, ErrorCode::kReadOnly},
                                                {ENOSPC, ErrorCode::kNoSpace},
                                                {EDQUOT, ErrorCode::kNoSpace},
                                                {ENOMEM, ErrorCode::kOutOfMemory},
                                                {EOPNOTSUPP, ErrorCode::kUnsupported},
                                                {ENOSYS, ErrorCode::kUnsupported},
                                                {EBUSY, ErrorCode::kBusy},
                                                {EAGAIN, ErrorCode::kBusy},
                                                {ECANCELED, ErrorCode::kCancelled},
                                                {ETIMEDOUT, ErrorCode::kTimedOut},
                                                {EIO, ErrorCode::kIo},
                                                {ENODEV, ErrorCode::kIo}};
  for (const auto& [number, code] : expected) {
    EXPECT_EQ(Error::from_errno(number, {.operation = "x"}).code(), code) << number;
  }
}

TEST(Error, PutsContextInFrontAndKeepsCodeAndErrno) {
  Error error = Error::from_errno(EROFS, {.operation = "open", .path = "/x"});
  const Error whole =
      std::move(error).with_context("reading record h.3").with_context("step 7").with_suffix("!");
  EXPECT_THAT(whole.message(), testing::StartsWith("step 7: reading record h.3: open /x failed"));
  EXPECT_THAT(whole.message(), testing::EndsWith("!"));
  EXPECT_EQ(whole.code(), ErrorCode::kReadOnly);
  EXPECT_EQ(whole.error_number(), EROFS);
}

TEST(Status, IsOkUntilItHoldsAnError) {
  const Status fine;
  EXPECT_TRUE(fine.ok());
  EXPECT_TRUE(static_cast<bool>(fine));
  const Status bad = Error(ErrorCode::kBusy, "later");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message(), "later");
  EXPECT_EQ(bad.error().error_number(), 0);
}

Result<std::unique_ptr<int>> half(int value) {
  if (value % 2 != 0) return Error(ErrorCode::kInvalidArgument, "odd");
  return std::make_unique<int>(value / 2);
}

Result<int> quarter(int value) {
  SLUICE_ASSIGN_OR_RETURN(const auto once, half(value));
  SLUICE_ASSIGN_OR_RETURN(auto twice, half(*once));
  SLUICE_RETURN_IF_ERROR(half(*twice * 2).status());
  return *twice;
}

Status check_quarter(int value) {
  SLUICE_RETURN_IF_ERROR(quarter(value).status());
  return {};
}

TEST(Result, CarriesAMoveOnlyValueOrReturnsTheErrorEarly) {
  ASSERT_TRUE(quarter(12).ok());
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().message(), "odd");
  EXPECT_TRUE(check_quarter(8).ok());
  EXPECT_EQ(check_quarter(7).error().code(), ErrorCode::kInvalidArgument);
  std::unique_ptr<int> taken = *half(4);
  EXPECT_EQ(*taken, 2);
}

TEST(ResultDeathTest, ChecksThatWhatIsAskedForIsThere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(half(1).value()), "holds an error");
  EXPECT_DEATH(static_cast<void>(half(2).error()), "that is ok");
  EXPECT_DEATH(static_cast<void>(Status().error()), "that is ok");
}

}  // namespace
}  // namespace sluice
