#include "aio/real_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RealFileSystem, MakesListsRenamesAndRemoves) {
  TemporaryFolder folder;
  RealFileSystem files;
  ASSERT_OK(files.make_directories(folder.file("a/b")));
  ASSERT_OK(files.make_directories(folder.file("a/b")));
  std::ofstream(folder.file("a/new")) << "new";
  std::ofstream(folder.file("a/old")) << "old!";
  EXPECT_THAT(*files.list(folder.file("a")), ElementsAre("b", "new", "old"));
  ASSERT_OK(files.rename(folder.file("a/new"), folder.file("a/old")));
  EXPECT_EQ(std::filesystem::file_size(folder.file("a/old")), 3U);
  ASSERT_OK(files.sync_directory(folder.file("a")));
  ASSERT_OK(files.remove(folder.file("a/old")));
  ASSERT_OK(files.remove(folder.file("a/b")));
  EXPECT_FALSE(*files.exists(folder.file("a/old")));
  EXPECT_TRUE(*files.exists(folder.file("a")));
  EXPECT_GT(*files.free_bytes(folder.path()), 0U);
}

TEST(RealFileSystem, SaysOperationPathAndErrnoInWords) {
  RealFileSystem files;
  const auto missing = files.open("/no/such/file", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message(),
            "open /no/such/file failed: No such file or directory (ENOENT)");
  EXPECT_THAT(files.list("/no/such").error().message(), HasSubstr("listing of /no/such"));
  EXPECT_THAT(files.remove("/no/such").error().message(), HasSubstr("removal of /no/such"));
  EXPECT_FALSE(files.rename("/no/such", "/x").ok());
  EXPECT_FALSE(files.sync_directory("/no/such").ok());
  EXPECT_FALSE(files.free_bytes("/no/such").ok());
  EXPECT_FALSE(*files.exists("/no/such"));
}

TEST(RealFileSystem, TellsASectorOf4096OnDirectFilesAndOneByteOnOthers) {
  TemporaryFolder folder;
  RealFileSystem files;
  OpenOptions options{.access = OpenOptions::Access::kReadWrite,
                      .create = OpenOptions::Create::kIfMissing};
  options.direct = false;
  const auto buffered = files.open(folder.file("f"), options);
  ASSERT_OK(buffered);
  EXPECT_FALSE((*buffered)->direct());
  EXPECT_EQ((*buffered)->offset_alignment_bytes(), 1U);
  options.direct = true;
  const auto direct = files.open(folder.file("f"), options);
  ASSERT_OK(direct);
  if (!(*direct)->direct()) GTEST_SKIP() << "no O_DIRECT on this file system";
  EXPECT_EQ((*direct)->offset_alignment_bytes(), 4096U);
}

TEST(RealFileSystem, ReportsMissingPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may do everything";
  RealFileSystem files;
  const auto file = files.open(
      "/sluice-must-not-exist",
      {.access = OpenOptions::Access::kReadWrite, .create = OpenOptions::Create::kIfMissing});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kPermission);
}

}  // namespace
}  // namespace sluice::aio
